
"use strict";
// Show the tooltip of the point that is nearest to the pointer.
(() => {
  const tip = document.getElementById("tip");
  let shown = null;
  const hide = () => { tip.hidden = true; if (shown) shown.classList.remove("on"); shown = null; };
  const show = (svg, event) => {
    let nearest = null, least = 40 * 40;
    for (const mark of svg.querySelectorAll("[data-t]")) {
      const box = mark.getBoundingClientRect();
      const dx = box.left + box.width / 2 - event.clientX, dy = box.top + box.height / 2 - event.clientY;
      if (dx * dx + dy * dy < least) { least = dx * dx + dy * dy; nearest = mark; }
    }
    hide();
    if (!nearest) return;
    shown = nearest;
    shown.classList.add("on");
    tip.textContent = shown.dataset.t;
    tip.hidden = false;
    const box = shown.getBoundingClientRect(), size = tip.getBoundingClientRect();
    const left = Math.min(Math.max(4, box.left - size.width / 2), innerWidth - size.width - 4);
    const above = box.top - size.height - 8;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 4 ? above : box.bottom + 8}px`;
  };
  for (const svg of document.querySelectorAll("svg.chart")) {
    svg.addEventListener("pointermove", event => show(svg, event));
    svg.addEventListener("pointerdown", event => show(svg, event));
    svg.addEventListener("pointerleave", hide);
  }
})();
