"""The page on scaling: from records to families, models, tables; and what stands in it is what the records give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from collops.errors import InputError
from collops_bench.model import Model, cgls, jacobi, migration, parameters_of, sparse, work_of
from collops_bench.plots import write_plots
from collops_bench.prediction import BEGIN, END, Scaling, machine_of, scaling_of, scaling_tables
from collops_bench.record import Measurement, Record, read_folder
from tests.bench.records import record, timing
from tests.bench.test_all import limits

pytestmark = pytest.mark.serial

ROOT = Path(__file__).parents[2]
MODEL = Model(overhead=5e-6, operation=0.0, memory=1.25, messages=0.5)


def made(ranks: int) -> list[Record]:
    """Records of a machine on which `MODEL` is the truth."""
    bounds = [limits(1), *([limits(ranks)] if ranks > 1 else [])]
    machine = machine_of([limits(1), limits(2), limits(4)])
    measurements = []
    for scaling, rows in (("strong", 40_000), ("weak", 10_000 * ranks)):
        work = cgls(rows, 500, ranks)
        parameters = {"scaling": scaling, "rows": rows, "columns": 500, **parameters_of(work)}
        measurements.append(Measurement("CGLS", parameters, {"collops": timing(MODEL.seconds(machine, work))}))
    scaled = replace(record("scaling"), ranks=ranks)
    scaled.measurements[:] = measurements
    return [*bounds[-1:], scaled]


def test_families_and_their_model() -> None:
    found = scaling_of([one for ranks in (1, 2, 4) for one in made(ranks)])
    assert [(each.words, each.scaling, sorted(each.measured)) for each in found.families] == [
        ("500 columns, rows: 40000", "strong", [1, 2, 4]),
        ("500 columns, rows: 10000 a rank", "weak", [1, 2, 4]),
    ]
    (fitted,) = found.models.values()
    for fit in (fitted.checked, fitted.model):
        assert fit.memory == pytest.approx(1.25, rel=1e-4)
        assert fit.messages == pytest.approx(0.5, rel=1e-4)
    assert len(fitted.errors) == 2
    for family, seconds, predicted in fitted.errors:
        assert seconds == family.measured[4]
        assert predicted == pytest.approx(seconds, rel=1e-4)
    strong, weak = found.families
    assert found.seconds(strong, 64) < found.seconds(strong, 1)
    assert found.seconds(weak, 1024) > found.seconds(weak, 1)


def test_the_runs_on_most_ranks_are_held_out() -> None:
    records = [one for ranks in (1, 2, 4) for one in made(ranks)]
    slow = records[-1].measurements
    slow[:] = [replace(one, timings={"collops": timing(1.0)}) for one in slow]
    (fitted,) = scaling_of(records).models.values()
    assert fitted.checked.memory == pytest.approx(1.25, rel=1e-4)
    assert fitted.model.messages != pytest.approx(0.5, rel=1e-2)
    assert all(predicted < 0.01 for _, _, predicted in fitted.errors)


def test_tables_say_what_was_measured_and_predicted() -> None:
    text = scaling_tables(scaling_of([one for ranks in (1, 2, 4) for one in made(ranks)]))
    rows = [line for line in text.splitlines() if line.startswith("| CGLS | 500 columns, rows: 40000 | strong |")]
    assert len(rows) == 2
    assert "| CGLS | 5 µs |  | 1.25 | 0.5 |" in text
    assert "+0 %" in text and "-0 %" not in text


def test_records_that_cannot_be_fitted_are_errors() -> None:
    with pytest.raises(InputError, match="no machine has records of limits and of scaling"):
        scaling_of([record()])
    with pytest.raises(InputError, match="one number of ranks only"):
        scaling_of(made(1))


@pytest.fixture(scope="module")
def recorded() -> Scaling:
    return scaling_of(list(read_folder(ROOT / "benchmarks" / "results").values()))


def test_the_page_has_what_the_records_give(recorded) -> None:
    written = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()
    assert written == scaling_tables(recorded).strip(), "run: collops bench plot --scaling docs/scaling.md"


def test_predictions_of_runs_that_were_held_out_are_near_them(recorded) -> None:
    assert {"migration", "CGLS", "sparse product", "Jacobi, nccl_graphs"} <= recorded.models.keys()
    errors = sorted(abs(b / a - 1) for fitted in recorded.models.values() for _, a, b in fitted.errors)
    assert errors[len(errors) // 2] < 0.1
    assert errors[-1] < 0.5


def test_one_record_of_limits_does_not_stop_the_plots(tmp_path) -> None:
    assert [path.name for path in write_plots(made(1), tmp_path)] == []
    names = [path.name for path in write_plots([one for ranks in (1, 2) for one in made(ranks)], tmp_path)]
    assert names == ["scaling.png"]


@pytest.mark.parametrize("ranks", [1, 3, 64])
def test_work_is_that_of_the_busiest_rank(ranks: int) -> None:
    for work in (
        migration(100, 40, 7, 50, ranks),
        cgls(1000, 10, ranks),
        sparse(8, 100, ranks),
        jacobi(64, 100, ranks),
        jacobi(64, 100, ranks, blocked=True),
    ):
        assert (len(work.messages) > 0) is (ranks > 1)
        assert work_of(parameters_of(work), ranks) == work
    assert migration(100, 40, 7, 50, ranks).operations == 2 * 100 * 7 * -(-40 // ranks)
    assert jacobi(64, 100, ranks).nbytes == 8 * jacobi(64, 100, ranks, blocked=True).nbytes
