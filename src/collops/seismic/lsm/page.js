
(() => {
  const fields = JSON.parse(document.getElementById("fields").textContent);
  const unpack = packed => {
    const bytes = Uint8Array.from(atob(packed.values), letter => letter.charCodeAt(0));
    const whole = packed.bytes === 2 ? new Int16Array(bytes.buffer) : new Int8Array(bytes.buffer);
    return Float32Array.from(whole, value => packed.middle + packed.scale * value);
  };
  const images = Object.fromEntries(Object.entries(fields.images).map(([name, packed]) => [name, unpack(packed)]));

  // A table of 256 colours between the given ones.
  const colors = given => Uint8Array.from({ length: 4 * 256 }, (_, at) => {
    const place = Math.floor(at / 4) / 255 * (given.length - 1), index = Math.min(Math.floor(place), given.length - 2);
    const [low, high] = [given[index][at % 4], given[index + 1][at % 4]];
    return at % 4 === 3 ? 255 : Math.round(low + (place - index) * (high - low));
  });
  const signed = colors([[24, 74, 130], [120, 170, 214], [247, 247, 245], [226, 140, 104], [140, 30, 25]]);
  const speeds = colors([[56, 24, 92], [47, 96, 142], [32, 146, 140], [110, 200, 98], [250, 230, 60]]);
  const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const words = value => Number(value.toPrecision(4)).toString();
  // The amplitude that a share of the values does not exceed.
  const level = (values, share = 0.995) => {
    const sizes = Float32Array.from(values, Math.abs).sort();
    return sizes[Math.floor(share * (sizes.length - 1))] || sizes[sizes.length - 1] || 1;
  };

  // An image of columns of values, with axes; returns the position of the pointer.
  const LEFT = 46, BOTTOM = 34, TOP = 6, RIGHT = 16;
  const ticks = (first, last) => {
    const rough = (last - first) / 5 || 1, decade = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(factor => factor * decade).find(one => one >= rough);
    const found = [];
    for (let tick = Math.ceil(first / step) * step; tick <= last + 1e-9 * step; tick += step) found.push(tick);
    return found;
  };
  const mark = (pen, x, y, wide, high) => { pen.fillRect(x - (high && .5), y - (wide && .5), wide || 1, high || 1); };
  const ticksAcross = (pen, left, right, inner, y) => {
    pen.textAlign = "center";
    for (const tick of ticks(Math.min(left, right), Math.max(left, right))) {
      const x = LEFT + inner * (tick - left) / (right - left || 1);
      mark(pen, x, y, 0, 4);
      pen.fillText(words(tick), x, y + 14);
    }
  };
  // Long numbers do not fit left of a plot.
  const brief = number => Math.abs(number) >= 1e5 ? Number(number.toPrecision(4)).toExponential().replace("e+", "e") : words(number);
  const ticksDown = (pen, top, deep, tall) => {
    pen.textAlign = "right";
    for (const tick of ticks(Math.min(top, deep), Math.max(top, deep))) {
      const y = TOP + tall * (tick - top) / (deep - top || 1);
      mark(pen, LEFT - 4, y, 4, 0);
      pen.fillText(brief(tick), LEFT - 6, y + 4);
    }
  };
  const widthFor = canvas => {
    const box = canvas.parentElement, { paddingLeft, paddingRight } = getComputedStyle(box);
    return Math.floor(box.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight));
  };
  const draw = (canvas, picture) => {
    const { across, down, limits, table, value, labels, ratio } = picture;
    const dense = devicePixelRatio || 1, free = widthFor(canvas) - LEFT - RIGHT;
    // In full size, every value has a pixel of the screen at least, and the plot scrolls.
    const [wide, high] = document.getElementById("full").checked ? [across.length, down.length].map(one => one / dense) : [0, 0];
    const inner = Math.max(free, wide), tall = Math.max(120, high, Math.min(560, free * ratio));
    canvas.style.width = `${inner + LEFT + RIGHT}px`;
    canvas.width = (inner + LEFT + RIGHT) * dense;
    canvas.height = (tall + TOP + BOTTOM) * dense;
    const pen = canvas.getContext("2d");
    pen.scale(dense, dense);
    const bitmap = new ImageData(across.length, down.length), most = 255 / (limits[1] - limits[0]);
    for (let row = 0, place = 0; row < down.length; row++) for (let column = 0; column < across.length; column++, place += 4) {
      const at = 4 * Math.min(Math.max(Math.round((value(column, row) - limits[0]) * most), 0), 255);
      for (let part = 0; part < 4; part++) bitmap.data[place + part] = table[at + part];
    }
    const sheet = document.createElement("canvas");
    sheet.width = across.length;
    sheet.height = down.length;
    sheet.getContext("2d").putImageData(bitmap, 0, 0);
    pen.imageSmoothingQuality = "high";
    pen.drawImage(sheet, LEFT, TOP, inner, tall);
    pen.fillStyle = style("--soft");
    pen.strokeStyle = style("--edge");
    pen.font = "11px system-ui, sans-serif";
    pen.strokeRect(LEFT - .5, TOP - .5, inner + 1, tall + 1);
    const right = across[across.length - 1], left = across[0], deep = down[down.length - 1], top = down[0];
    ticksAcross(pen, left, right, inner, TOP + tall);
    pen.fillText(labels[0], LEFT + inner / 2, TOP + tall + 29);
    ticksDown(pen, top, deep, tall);
    pen.save();
    pen.translate(10, TOP + tall / 2);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = "center";
    pen.fillText(labels[1], 0, 0);
    pen.restore();
    canvas.picture = { ...picture, inner, tall };
  };
  const pointed = (canvas, event) => {
    if (!canvas.picture) return null;
    const box = canvas.getBoundingClientRect(), { across, down, inner, tall } = canvas.picture;
    const column = Math.floor((event.clientX - box.left - LEFT) / inner * across.length);
    const row = Math.floor((event.clientY - box.top - TOP) / tall * down.length);
    return column >= 0 && column < across.length && row >= 0 && row < down.length ? [column, row] : null;
  };
  const follow = (canvas, say) => {
    const output = document.getElementById(`${canvas.id}-words`);
    const move = event => {
      const place = pointed(canvas, event);
      output.textContent = place ? say(...place) : "";
    };
    canvas.addEventListener("pointermove", move);
    canvas.addEventListener("pointerdown", move);
    canvas.addEventListener("pointerleave", () => { output.textContent = ""; });
  };

  // The image

  const picture = document.getElementById("picture"), column = document.getElementById("column");
  const shown = () => document.querySelector("input[name=shown]:checked").value;
  const gain = name => 2 ** Number(document.getElementById(name).value);
  let followed = Math.floor(fields.x.length / 2);
  const balanced = values => {
    const rows = fields.z.length, result = values.slice();
    for (let row = 0; row < rows; row++) {
      let sum = 0;
      for (let at = row; at < values.length; at += rows) sum += values[at] ** 2;
      const size = Math.sqrt(sum / fields.x.length) || 1;
      for (let at = row; at < values.length; at += rows) result[at] /= size;
    }
    return result;
  };
  const current = () => {
    const name = shown(), values = images[name];
    const velocity = fields.speeds.includes(name);
    const drawn = document.getElementById("balance").checked && !velocity ? balanced(values) : values;
    const most = level(drawn) / gain("gain");
    const limits = velocity ? [Math.min, Math.max].map(end => values.reduce((one, other) => end(one, other))) : [-most, most];
    if (limits[0] === limits[1]) limits[1] += 1;
    return { name, values, drawn, limits, velocity };
  };
  const unit = name => fields.speeds.includes(name) ? " m/s" : "";
  const drawImage = () => {
    const { drawn, limits, velocity } = current(), rows = fields.z.length, last = fields.x.length - 1;
    draw(picture, {
      across: fields.x, down: fields.z, limits, table: velocity ? speeds : signed,
      value: (at, row) => drawn[at * rows + row], labels: ["distance, m", "depth, m"],
      ratio: (fields.z[rows - 1] - fields.z[0]) / (fields.x[last] - fields.x[0] || 1) || 1,
    });
    drawColumn();
  };
  const drawColumn = () => {
    const { drawn, limits } = current(), rows = fields.z.length;
    const width = widthFor(column), tall = 150, dense = devicePixelRatio || 1;
    column.style.width = `${width}px`;
    column.width = width * dense;
    column.height = tall * dense;
    const pen = column.getContext("2d"), inner = width - LEFT - RIGHT;
    pen.scale(dense, dense);
    const up = value => TOP + (tall - TOP - BOTTOM) * (limits[1] - Math.min(Math.max(value, limits[0]), limits[1])) / (limits[1] - limits[0]);
    const along = row => LEFT + inner * row / (rows - 1 || 1);
    pen.strokeStyle = style("--edge");
    pen.beginPath();
    pen.moveTo(LEFT, up(0));
    pen.lineTo(LEFT + inner, up(0));
    pen.stroke();
    pen.strokeStyle = style("--c0");
    pen.lineWidth = 1.6;
    pen.beginPath();
    for (let row = 0; row < rows; row++) pen.lineTo(along(row), up(drawn[followed * rows + row]));
    pen.stroke();
    pen.fillStyle = style("--soft");
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "center";
    ticksAcross(pen, fields.z[0], fields.z[rows - 1], inner, tall - BOTTOM);
    ticksDown(pen, limits[1], limits[0], tall - TOP - BOTTOM);
    pen.textAlign = "center";
    pen.fillText(`depth, m, at ${words(fields.x[followed])} m`, LEFT + inner / 2, tall - 5);
    column.picture = { across: fields.z, down: [0], inner, tall };
  };
  follow(picture, (at, row) => {
    followed = at;
    drawColumn();
    const { name, values } = current();
    return `${words(fields.x[at])} m, depth ${words(fields.z[row])} m: ${words(values[at * fields.z.length + row])}${unit(name)}`;
  });
  follow(column, row => {
    const { name, values } = current();
    return `depth ${words(fields.z[row])} m: ${words(values[followed * fields.z.length + row])}${unit(name)}`;
  });

  // The shots: a script for each, since a page that was opened as a file may load nothing else

  const slider = document.getElementById("shot"), names = ["data", "explained", "data_residual"], loaded = new Map();
  const root = packed => unpack(packed).map(value => value * Math.abs(value));
  window.shot = (number, content) => {
    const data = root(content.data), residual = root(content.data_residual);
    const explained = data.map((value, index) => value - residual[index]);
    loaded.set(number, { ...content, number, data, explained, data_residual: residual });
    if (loaded.size > 20) loaded.delete(loaded.keys().next().value);
    if (number === Number(slider.value)) drawGathers();
  };
  const drawGathers = () => {
    const number = Number(slider.value), shot = loaded.get(number);
    document.getElementById("shot-words").textContent = `field record ${fields.records[number]}, ${number + 1} of ${fields.records.length}`;
    if (!shot) {
      const script = document.createElement("script");
      script.src = `shots/${number}.js`;
      script.onload = () => script.remove();
      document.head.append(script);
      return;
    }
    const share = Number(document.getElementById("clip").value);
    document.getElementById("clip-words").textContent = `${share} %`;
    const samples = fields.time.length, limit = level(shot.data, share / 100) / gain("loud");
    for (const name of names) draw(document.getElementById(`gather-${name}`), {
      across: shot.even ? shot.offset : shot.offset.map((_, trace) => trace + 1), down: fields.time, limits: [-limit, limit],
      table: signed, value: (trace, sample) => shot[name][trace * samples + sample],
      labels: [shot.even ? "offset, m" : "trace", "time, s"], ratio: 1.15, shot,
    });
  };
  for (const name of names) {
    const canvas = document.getElementById(`gather-${name}`);
    follow(canvas, (trace, sample) => {
      const { shot, down, value } = canvas.picture;
      return `channel ${shot.channel[trace]}, offset ${words(shot.offset[trace])} m, ${words(down[sample])} s: ${words(value(trace, sample))}`;
    });
  }
  document.addEventListener("keydown", event => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || event.target.matches("input")) return;  // the slider moves by itself
    slider.value = Number(slider.value) + step;
    drawGathers();
  });

  const all = () => { drawImage(); drawGathers(); };
  for (const input of document.querySelectorAll(".controls input")) input.addEventListener("input", all);
  addEventListener("resize", all);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  all();
})();
