"""How the documentation is built; `make docs` does it."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_extensions"), str(HERE.parent / "src"), str(HERE.parent / "benchmarks" / "src")]

# Pictures are drawn into files, and a page must not depend on how many ranks or cores its builder has.
os.environ.setdefault("MPLBACKEND", "Agg")

import collops

project = "collops"
author = copyright = "the collops developers"
version = release = collops.__version__
language = "en"

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "myst_parser",
    "sphinx_gallery.gen_gallery",
    "links_to_source",
    "mathml",
    "measured",
    "messages",
    "notebooks",
    "optional_pages",
    "reference",
]
exclude_patterns = ["_build", "_extensions", "_measured"]
suppress_warnings = [
    "ref.footnote",  # numpydoc's References are read without being referred to
    "ref.python",  # a type's name in prose may be that of several classes
]
highlight_language = "none"
default_role = "literal"

myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3

autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_typehints = "none"  # numpydoc sections say what types are
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_param = False  # the words of a type are prose: `dtype`, `int or sequence of int`
napoleon_use_rtype = False

templates_path = ["_templates"]
html_theme = "furo"
html_title = "collops"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["collops.css"]
html_js_files = [("collops.js", {"defer": "defer"})]
html_copy_source = False
html_show_sphinx = False

# Examples that need a package which building the pages does not: they are shown, and run where the package is.
needed = {"learn_": "jax", "devito_": "devito", "deepwave_": "deepwave"}
shown_only = "".join(f"(?!{name})" for name, package in needed.items() if find_spec(package) is None)

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": rf"/{shown_only}\w+\.py$",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_signature": False,
    "remove_config_comments": True,
    "abort_on_example_error": True,
    "reset_modules": ("matplotlib",),
    "min_reported_time": 1000,
    "write_computation_times": False,
}
