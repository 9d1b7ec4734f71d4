"""SEG-Y revision 2, in files that are written byte by byte: extended fields, more headers, texts, trailers."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collops.errors import InputError
from collops.seismic.segy import TIMING, SegyFile, sample_interval
from collops.seismic.survey import read
from collops.seismic.survey.geometry import Grid
from collops.seismic.survey.segy import shot_traces
from collops.seismic.survey.velocity import load_velocity, on_grid
from collops.seismic.volume.files import open_volume
from tests.seismic.files import write_alone

TRACES = 6


def ibm(values: np.ndarray) -> np.ndarray:
    """Return the bits of IBM floats: a sign, an exponent of 16 with bias 64, and 24 bits of a fraction below 1."""
    exponent = np.where(values == 0, 0, np.ceil(np.log2(np.abs(values) + (values == 0)) / 4 + 1e-9)).astype(int)
    fraction = np.rint(np.abs(values) / 16.0**exponent * 2**24).astype(np.uint32)
    return (np.signbit(values).astype(np.uint32) << 31) | ((exponent + 64).astype(np.uint32) << 24) | fraction


KINDS = {1: "u4", 2: "i4", 3: "i2", 5: "f4", 6: "f8", 8: "i1", 9: "i8", 10: "u4", 11: "u2", 12: "u8", 16: "u1"}


def write(path: Path, values: np.ndarray, *, order: str = ">", code: int = 5, minor: int = 0, **fields: Any) -> Path:
    """Write traces; `fields` are numbers of the binary header by their bytes, and what else differs.

    Names are the format of a number and its byte, such as ``d3273``.
    """
    samples = values.shape[1]
    binary = bytearray(400)

    def put(kind: str, byte: int, value: Any) -> None:
        struct.pack_into(order + kind, binary, byte - 3201, value)

    put("H", 3217, 4000)
    put("H", 3221, samples & 0xFFFF)
    put("H", 3225, code)
    put("H", 3255, 1)
    put("I", 3297, 0x01020304)
    struct.pack_into("BB", binary, 300, fields.pop("major", 2), minor)
    put("H", 3503, 1)
    more = fields.pop("more", 0)
    put("H" if minor else "I", 3507, more)
    if minor:
        put("H", 3509, 1)  # the survey type
    texts, trailers = fields.pop("texts", b""), fields.pop("trailers", b"")
    of_trace, extension = fields.pop("of_trace", {}), fields.pop("extension", None)
    name = fields.pop("name", b"SEG00001")
    for field, value in fields.items():
        put(field[0], int(field[1:]), value)
    content = [("C 1 REVISION 2".ljust(80) * 40).encode("cp037"), bytes(binary), texts]
    for number, row in enumerate(values):
        header = bytearray(240)
        standard = {"i1": number + 1, "i9": 10 + number // 3, "i13": number % 3 + 1, "h29": 1, "h71": 1, "h69": 1}
        standard |= {"i73": 100 * (number // 3), "i81": 50 * number, "H115": samples & 0xFFFF, "H117": 4000}
        standard |= {"i181": 25 * number, "i189": 1}
        for field, value in (standard | of_trace).items():
            struct.pack_into(order + field[0], header, int(field[1:]) - 1, value)
        header[232:240] = b"SEG00000"
        extra = [bytearray(240) for _ in range(more)]
        for byte, value in (extension or {}).items():
            struct.pack_into(order + "d", extra[0], byte - 1, value)
        if more and extension is not None:
            extra[0][232:240] = name
        samples_of = ibm(row) if code == 1 else row
        content += [bytes(header), *map(bytes, extra), samples_of.astype(order + KINDS[code]).tobytes()]
    path.write_bytes(b"".join([*content, trailers]))
    return path


def numbers(samples: int = 50, traces: int = TRACES) -> np.ndarray:
    return (np.arange(samples) % 100 + 10.0 * np.arange(traces)[:, None]) % 120


def centred() -> np.ndarray:
    return numbers() - numbers().mean(axis=1, keepdims=True).round()


def check(path: Path, values: np.ndarray) -> SegyFile:
    file = SegyFile.inspect(path)
    assert (file.traces, file.samples, file.revision) == (*values.shape, 2)
    np.testing.assert_array_equal(file.read(np.arange(len(values))), values)
    np.testing.assert_array_equal(file.read(np.array([3, 1, 2])), values[[3, 1, 2]])
    found = file.headers("FieldRecord", "TraceNumber", "GroupX")
    assert found["FieldRecord"].tolist() == [10, 10, 10, 11, 11, 11][: len(values)]
    assert found["GroupX"].tolist() == [50 * trace for trace in range(len(values))]
    assert file.text().startswith("C 1 REVISION 2")
    return file


@pytest.mark.serial
class TestFiles:
    @pytest.mark.parametrize("order", ["<", ">"])
    @pytest.mark.parametrize("minor", [0, 1])
    @pytest.mark.parametrize("code", KINDS)
    @pytest.mark.parametrize("more", [0, 2])
    def test_samples_of_all_types(self, tmp_path, code, minor, order, more):
        file = check(write(tmp_path / "a.sgy", numbers(), order=order, code=code, minor=minor, more=more), numbers())
        assert file.header_bytes == 240 * (1 + more)
        assert file.endian == ("little" if order == "<" else "big")

    @pytest.mark.parametrize("order", ["<", ">"])
    def test_ibm_floats_with_fractions_and_signs(self, tmp_path, order):
        values = np.array([[0.15625, -118.625, 1e-3, -7e5, 0.0, 16.0]])
        found = SegyFile.inspect(write(tmp_path / "a.sgy", values, order=order, code=1)).read(np.arange(1))
        np.testing.assert_allclose(found, values, rtol=1e-6)

    @pytest.mark.parametrize("old", [0, None, 7])
    def test_an_extended_number_of_samples(self, tmp_path, old):
        values = numbers(70_000)
        fields = {} if old is None else {"H3221": old}
        check(write(tmp_path / "a.sgy", values, i3269=70_000, **fields), values)

    @pytest.mark.parametrize("order", ["<", ">"])
    def test_an_extended_interval(self, tmp_path, order):
        path = write(tmp_path / "a.sgy", numbers(), order=order, d3273=62.5, H3217=62, of_trace={"H117": 62})
        file, notes = SegyFile.inspect(path), []
        assert sample_interval(file, file.live_headers(*TIMING)[1], notes) == 62.5e-6
        assert notes == []  # 62 is 62.5 rounded

    def test_the_interval_of_the_trace_header_extension(self, tmp_path):
        path = write(
            tmp_path / "a.sgy", numbers(), d3273=125.0, more=1, extension={145: 62.5}, name="SEG00001".encode("cp037")
        )
        file, notes = SegyFile.inspect(path), []
        assert sample_interval(file, file.live_headers(*TIMING)[1], notes) == 62.5e-6
        assert len(notes) == 3 and "125 microseconds in bytes 3273 to 3280" in notes[0]
        path = write(tmp_path / "b.sgy", numbers(), more=1, extension={145: 62.5}, name=b"MYNAME  ")
        file = SegyFile.inspect(path)
        assert sample_interval(file, file.live_headers(*TIMING)[1]) == 4e-3

    @pytest.mark.parametrize("encoding", ["ascii", "cp037"])
    def test_extended_textual_headers(self, tmp_path, encoding):
        one, last = (text.ljust(3200).encode(encoding) for text in ("((SEG: Measurement Units))", "((SEG: EndText))"))
        check(write(tmp_path / "a.sgy", numbers(), texts=one * 3, H3505=3), numbers())
        check(write(tmp_path / "b.sgy", numbers(), texts=one + one + last, h3505=-1), numbers())
        check(write(tmp_path / "c.sgy", numbers(), texts=one * 2, h3505=-1, Q3521=3600 + 6400), numbers())
        with pytest.raises(InputError, match="variable number of text headers"):
            SegyFile.inspect(write(tmp_path / "d.sgy", numbers(), texts=one, h3505=-1))

    def test_data_trailers(self, tmp_path):
        trailer = "((OtherCompany: Picks))".ljust(3200).encode()
        check(write(tmp_path / "a.sgy", numbers(), trailers=trailer * 2, i3529=2), numbers())
        check(write(tmp_path / "b.sgy", numbers(), trailers=trailer * 2, i3529=-1, Q3513=TRACES), numbers())
        check(write(tmp_path / "c.sgy", numbers(), trailers=b"anything", Q3513=TRACES), numbers())

    @pytest.mark.parametrize(
        ("fields", "complaint"),
        [
            ({"I3297": 0x02010403}, "pairwise swapped"),
            ({"d3273": float("nan")}, "extended sample interval of nan"),
            ({"d3273": -4000.0}, "extended sample interval of -4000"),
            ({"i3529": -1}, "unknown number of data trailers"),
            ({"Q3521": 80}, "first trace at byte 80"),
            ({"Q3521": 1 << 60}, "truncated"),
            ({"Q3513": TRACES + 1}, "truncated or damaged: .* not 7"),
            ({"i3269": 51}, "truncated"),
            ({"I3507": 0x30003}, "truncated"),
        ],
    )
    def test_what_is_wrong_is_named(self, tmp_path, fields, complaint):
        with pytest.raises(InputError, match=complaint):
            SegyFile.inspect(write(tmp_path / "a.sgy", numbers(), **fields))

    def test_earlier_revisions_may_hold_anything_in_the_new_fields(self, tmp_path):
        garbage = {"i3269": 9, "d3273": 62.5, "I3507": 4, "Q3513": 2, "Q3521": 99, "i3529": 5}
        path = write(tmp_path / "a.sgy", numbers(), major=1, **garbage)
        file = SegyFile.inspect(path)
        assert (file.revision, file.samples, file.traces, file.interval) == (1, 50, TRACES, 4000)
        np.testing.assert_array_equal(file.read(np.arange(TRACES)), numbers())

    def test_a_file_that_becomes_shorter_is_one_error(self, tmp_path):
        path = write(tmp_path / "a.sgy", numbers())
        file = SegyFile.inspect(path)
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(InputError, match="shorter"):
            file.read(np.arange(TRACES))


@pytest.mark.serial
@pytest.mark.parametrize(
    ("fields", "used", "others"),
    [
        ({"H3217": 2000}, 4e-3, ["2000 microseconds in bytes 3217"]),
        ({"of_trace": {"H117": 0}}, 4e-3, []),
        ({"d3273": 2000.25}, 2000.25e-6, ["4000 microseconds in bytes 117", "4000 microseconds in bytes 3217"]),
        ({"H3217": 0, "of_trace": {"H117": 40_000}}, 40e-3, []),
    ],
)
def test_intervals_that_disagree_get_a_note(tmp_path, fields, used, others):
    path = write(tmp_path / "a.sgy", numbers(), **fields)
    file, notes = SegyFile.inspect(path), []
    assert sample_interval(file, file.live_headers(*TIMING)[1], notes) == pytest.approx(used, rel=1e-12)
    assert len(notes) == len(others)
    assert all(other in note and f"{1e6 * used:g} is used" in note for other, note in zip(others, notes, strict=True))


@pytest.mark.serial
def test_traces_without_an_interval_have_the_interval_of_the_others(tmp_path):
    path = write(tmp_path / "a.sgy", numbers(), H3217=2000)
    content = bytearray(path.read_bytes())
    begin = 3600 + 2 * (240 + 200) + 116
    content[begin : begin + 2] = bytes(2)
    path.write_bytes(content)
    file = SegyFile.inspect(path)
    assert sample_interval(file, file.live_headers(*TIMING)[1]) == 4e-3
    content[begin : begin + 2] = struct.pack(">H", 2000)
    path.write_bytes(content)
    with pytest.raises(InputError, match="mixes sample intervals from 2000 to 4000"):
        sample_interval(file, file.live_headers(*TIMING)[1])


def given(comm: Any, path: Path, values: np.ndarray, **fields: Any) -> str:
    if comm.rank == 0:
        write(path, values, **fields)
    comm.barrier()
    return str(path)


def test_a_survey_with_more_headers_and_a_fine_interval(comm, folder):
    fields = {"more": 1, "extension": {97: 5.0}, "d3273": 62.5, "H3217": 62, "of_trace": {"H117": 63}, "order": "<"}
    survey = read(given(comm, folder / "a.sgy", centred(), **fields), comm)
    assert survey.geometry.interval == 62.5e-6 and (survey.geometry.shots, survey.geometry.traces) == (2, 6)
    np.testing.assert_array_equal(survey.geometry.receivers[1][0], [150, 200, 250])
    traces = comm.allgatherv(np.concatenate([np.empty((0, 50)), *survey.traces]), [3 * len(s) for s in survey.shares])
    np.testing.assert_array_equal(traces, centred())
    (note,) = [each for each in survey.notes if "extension 1" in each]
    assert "has source_x, which replace" in note and (survey.geometry.sources[0] == 5).all()


def test_volumes_and_velocities_say_which_interval_is_used(comm, folder):
    path = given(comm, folder / "v.sgy", 1500 + numbers(), d3273=8000.5, H3217=8000)
    model, notes = load_velocity(path, 2, None), []
    assert model.depth[1] == 8.0005  # type: ignore[union-attr]
    on_grid(model, Grid(11, 11, 10.0, 10.0), None, notes)
    assert any("4000 millimetres in bytes 117" in note and "8000.5 is used" in note for note in notes)
    reader = open_volume(Path(path), None, ("data",))
    assert reader.cube.interval == 8000.5e-6
    assert any("4000 microseconds in bytes 117" in note for note in reader.notes)


@pytest.mark.serial
@pytest.mark.parametrize("order", ["<", ">"])
def test_results_of_such_a_file_are_of_revision_1(tmp_path, order):
    """All programs read them: nothing of revision 2 remains, and the standard headers are kept."""
    import segyio

    path = write(tmp_path / "a.sgy", numbers(), order=order, more=1, i3269=50, d3273=4000.0, i3201=77)
    survey = read(path)
    made = shot_traces("RESULT", survey.headers, survey.shots, numbers())  # type: ignore[arg-type]
    write_alone(tmp_path / "b.sgy", made)
    raw = (tmp_path / "b.sgy").read_bytes()
    assert not any(raw[3260:3500]) and raw[3500:3502] == b"\x01\x00" and not any(raw[3504:3600])
    assert raw[3600 + 232 : 3600 + 240] == b"SEG00000"  # text, which has no byte order
    with segyio.open(str(tmp_path / "b.sgy"), ignore_geometry=True) as file:
        assert file.bin[3201] == 77
        assert file.attributes(9)[:].tolist() == [10, 10, 10, 11, 11, 11]
        assert file.attributes(81)[:].tolist() == [0, 50, 100, 150, 200, 250]
        np.testing.assert_array_equal(file.trace.raw[:], numbers())


def test_images_of_revision_2_have_the_exact_interval(comm, folder):
    """Steps above 65.535 m, which revision 1 cannot represent, are the same here, in segyio and in the bytes."""
    import segyio

    survey = read(given(comm, folder / "a.sgy", centred()), comm)
    grid = Grid(4, 9, 25.0, 80.0004)
    image = np.arange(36.0).reshape(4, 9)
    with pytest.raises(InputError, match="whole microseconds"):
        survey.write(folder / "b.sgy", image, grid)
    path = survey.write(folder / "b.sgy", image, grid, revision=2)
    content, file = path.read_bytes(), SegyFile.inspect(path)
    assert (file.revision, file.samples, file.traces, file.interval, file.exact) == (2, 9, 4, 80_000.4, True)
    assert struct.unpack(">i", content[3268:3272]) == (9,) and struct.unpack(">d", content[3272:3280]) == (80_000.4,)
    assert struct.unpack(">iQQ", content[3296:3300] + content[3512:3528]) == (0x01020304, 4, 3600)
    assert content[3500:3504] == b"\2\0\0\1" and content[3600 + 232 : 3840] == b"SEG00000"
    np.testing.assert_array_equal(file.read(np.arange(4)), image)
    assert "SEG-Y REV2.0" in file.text()
    with segyio.open(str(path), ignore_geometry=True) as other:
        np.testing.assert_array_equal(other.trace.raw[:], image)
        assert other.attributes(181)[:].tolist() == file.headers("CDP_X")["CDP_X"].tolist()


@pytest.mark.serial
def test_shots_of_revision_2_keep_their_headers(tmp_path):
    survey = read(write(tmp_path / "a.sgy", centred(), i3201=77))
    made = shot_traces("RESULT", survey.headers, survey.shots, centred(), 2)  # type: ignore[arg-type]
    write_alone(tmp_path / "b.sgy", made)
    again = read(tmp_path / "b.sgy")
    np.testing.assert_array_equal(np.concatenate(again.traces), centred())
    assert again.geometry.sources.tolist() == survey.geometry.sources.tolist()
    assert SegyFile.inspect(tmp_path / "b.sgy").binary()[3201] == 77


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("minor", "more"), [(0, 0), (0, 1), (1, 2)])
def test_traces_of_different_lengths_may_fill_a_file_of_equal_ones(tmp_path, order, minor, more):
    path = tmp_path / "a.sgy"

    def varying(counts, **fields):
        """Write one trace of each length, and return the file and the values."""
        rows = [numbers(61)[trace, :count] for trace, count in enumerate(counts)]
        options = {"order": order, "minor": minor, "more": more, "H3503": 0, **fields}
        contents = [write(path, row[None], **options).read_bytes() for row in rows]
        path.write_bytes(b"".join([contents[0][:3600], *[content[3600:] for content in contents]]))
        return SegyFile.inspect(path), np.stack([np.pad(row, (0, max(counts) - len(row))) for row in rows])

    for counts, fields in (
        ([40, 50, 30, 40, 20, 60], {}),  # 40 each on average
        ([40, 50, 30, 40, 20, 61], {}),
        ([30, 50, 40], {"Q3513": 3}),
    ):
        file, values = varying(counts, **fields)
        assert file.varying is not None and file.varying[0].tolist() == counts
        np.testing.assert_array_equal(file.read(np.arange(len(counts))), values)
    # Traces of equal length, with smaller numbers in the headers of those that end in zeros.
    padded = numbers()
    padded[:, 30:] = 0
    file = SegyFile.inspect(write(path, padded, order=order, minor=minor, more=more, H3503=0, of_trace={"H115": 30}))
    assert file.varying is None and file.traces == TRACES
    np.testing.assert_array_equal(file.read(np.arange(TRACES)), padded)


@pytest.mark.serial
def test_headers_of_a_known_number_of_traces_end_before_the_trailers(tmp_path, monkeypatch):
    trailers = "((X))".ljust(3200).encode("cp037") * 20
    path = write(tmp_path / "a.sgy", numbers(40, 100), trailers=trailers, H3503=0, Q3513=100, i3529=20)
    with monkeypatch.context() as context:
        context.setattr("collops.seismic.segy.start.walked", None)  # no header but the checked ones is read
        file = SegyFile.inspect(path)
    assert file.varying is None and file.traces == 100
    np.testing.assert_array_equal(file.read(np.arange(100)), numbers(40, 100))


@pytest.mark.serial
@pytest.mark.parametrize("lengths", [(60, 40), (40, 60)])
@pytest.mark.parametrize("fields", [{}, {"Q3513": 100}])
def test_lengths_that_differ_between_the_checked_headers_are_an_error(tmp_path, lengths, fields):
    path, values = tmp_path / "a.sgy", numbers(60, 100) + 1
    content, *parts = (write(path, values[:, :n], H3503=0, **fields).read_bytes() for n in (50, 60, 40))
    pair = b"".join(
        parts[(60, 40).index(n)][3600 + row * (240 + 4 * n) :][: 240 + 4 * n]
        for row, n in zip((34, 35), lengths, strict=True)
    )
    begin = 3600 + 34 * 440
    path.write_bytes(content[:begin] + pair + content[begin + 880 :])
    file = SegyFile.inspect(path)
    for reading in (lambda: file.headers("FieldRecord"), lambda: file.read(np.arange(100)), lambda: read(path)):
        with pytest.raises(InputError, match="traces of different lengths, together as long as traces of 50 samples"):
            reading()
    np.testing.assert_array_equal(file.read(np.arange(34)), values[:34, :50])


@pytest.mark.serial
@pytest.mark.parametrize("fixed", [0, 1])
def test_headers_with_more_samples_than_the_file(tmp_path, fixed):
    path = write(tmp_path / "a.sgy", centred(), H3503=fixed, of_trace={"H115": 60})
    if fixed:
        assert any("6 of 6 traces have more than 50 samples in bytes 115" in note for note in read(path).notes)
    else:
        with pytest.raises(InputError, match="60 samples in the header of trace 1, but 50 in its binary header"):
            read(path)
