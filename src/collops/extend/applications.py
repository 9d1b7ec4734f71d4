"""Applications: their options, the recipe that runs them, and their inputs, outputs and figures.

An application is a module with ``Options``, derived from `CommonOptions`, and ``run(job)``, which takes a `Job` and
returns `Findings`. The entry-point group ``collops.commands`` makes it a command.

Requirements that need no argument: `Positive`, `NotNegative`, `Finite`, `Folder`. Annotations of options that most
applications have: `Iterations`, `Damp`, `Dtype`, `EngineName`, `Out`, `Overwrite`. Panels of the help: `DATA`,
`SYNTHETIC`, `METHOD`. ``__all__`` lists the names in the reference.
"""

from collops.apps import interruption as interruption
from collops.apps.files import Field as Field
from collops.apps.files import atomic as atomic
from collops.apps.files import check_absent as check_absent
from collops.apps.files import check_writable as check_writable
from collops.apps.files import decoded as decoded
from collops.apps.files import dimension_names as dimension_names
from collops.apps.files import is_zarr as is_zarr
from collops.apps.files import not_finite as not_finite
from collops.apps.files import open_array as open_array
from collops.apps.files import open_zarr as open_zarr
from collops.apps.files import prepare_folder as prepare_folder
from collops.apps.files import read_rows as read_rows
from collops.apps.files import write_result as write_result
from collops.apps.options import DATA as DATA
from collops.apps.options import METHOD as METHOD
from collops.apps.options import SYNTHETIC as SYNTHETIC
from collops.apps.options import AtLeast as AtLeast
from collops.apps.options import CommonOptions as CommonOptions
from collops.apps.options import Damp as Damp
from collops.apps.options import Dtype as Dtype
from collops.apps.options import EngineName as EngineName
from collops.apps.options import Finite as Finite
from collops.apps.options import Folder as Folder
from collops.apps.options import Iterations as Iterations
from collops.apps.options import Must as Must
from collops.apps.options import NotNegative as NotNegative
from collops.apps.options import OneOf as OneOf
from collops.apps.options import Out as Out
from collops.apps.options import Overwrite as Overwrite
from collops.apps.options import Positive as Positive
from collops.apps.options import RecordedOnly as RecordedOnly
from collops.apps.options import SyntheticOnly as SyntheticOnly
from collops.apps.options import check_must as check_must
from collops.apps.options import option as option
from collops.apps.page import COLORS as COLORS
from collops.apps.page import render as render
from collops.apps.page import svg as svg
from collops.apps.pictures import Panel as Panel
from collops.apps.pictures import balanced as balanced
from collops.apps.pictures import draw_panels as draw_panels
from collops.apps.pictures import figure as figure
from collops.apps.pictures import gather_rows as gather_rows
from collops.apps.pictures import symmetric_limit as symmetric_limit
from collops.apps.recipe import Exporter as Exporter
from collops.apps.recipe import Findings as Findings
from collops.apps.recipe import Gradient as Gradient
from collops.apps.recipe import Job as Job
from collops.apps.recipe import Listener as Listener
from collops.apps.recipe import Solution as Solution
from collops.apps.recipe import best_relative_error as best_relative_error
from collops.apps.recipe import largest_amplitude as largest_amplitude
from collops.apps.recipe import relative_error as relative_error
from collops.apps.recipe import run_job as run_job
from collops.apps.stages import check_memory as check_memory
from collops.apps.stages import engine_of_ranks as engine_of_ranks
from collops.apps.stages import local_stage as local_stage
from collops.apps.urls import Url as Url
from collops.apps.urls import located as located
from collops.limits import digits as digits
from collops.limits import in_words as in_words

__all__ = [
    "AtLeast",
    "CommonOptions",
    "Field",
    "Findings",
    "Job",
    "Must",
    "OneOf",
    "RecordedOnly",
    "Solution",
    "SyntheticOnly",
    "atomic",
    "figure",
    "local_stage",
    "option",
    "relative_error",
    "run_job",
]
