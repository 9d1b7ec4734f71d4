"""The page of all messages: what collops says when it refuses something, and what to do about it.

Messages are read from where they are raised; what to do about them from `remedies.toml`.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from collops import errors

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SOURCE = Path(errors.__file__).parent
REMEDIES = tomllib.loads(Path(__file__).with_name("remedies.toml").read_text("utf-8"))["remedy"]
# Subjects in the order of the page: a title, the parts of the source that speak of it (the longest that fits counts),
# and where to read about it.
SUBJECTS = {
    "Arrays and layouts": (
        ("__init__.py", "array", "backend.py"),
        "Shapes, layouts, dtypes or engines do not go together, or a function of NumPy would need messages. "
        "[Arrays and layouts](arrays.md) has what brings one to the other.",
    ),
    "Operators": (
        ("operators", "seismic/kirchhoff", "seismic/waves"),
        "An operator cannot be made of what it was given, or was given an array of another layout, dtype or engine. "
        "What each takes is in the [reference](reference/index.rst).",
    ),
    "Solvers and checkpoints": (
        ("solvers", "preconditioners", "uncertainty"),
        "A method cannot start, its checkpoint cannot be used, or a preconditioner cannot be made: see "
        "[solvers](solvers.md), [checkpoints](checkpoints.md) and [preconditioners](preconditioners.md).",
    ),
    "Star forests, scatters and sparse matrices": (
        ("exchange", "array/index_scatter", "operators/csr"),
        "Indices or sizes do not describe one graph on all ranks. [Star forests](starforest.md) says what each "
        "rank gives.",
    ),
    "Jacobi's method": (
        ("jacobi",),
        "An option is wrong, or the sizes or the variant do not fit the ranks: see [`collops jacobi`](jacobi.md).",
    ),
    "Communicators, transports and messages": (
        ("comm", "_launcher.py", "_nvrtc.py"),
        "A `TransportError` names what is missing: `collops info` on the same ranks shows what each has, and [choosing "
        "a transport](transports.md) what needs what. The others are about the arguments of one call; "
        "[timeouts and failures](when-it-goes-wrong.md) has the errors of waits and of the network.",
    ),
    "JAX": (
        ("jax",),
        "Something is missing for messages of JAX arrays, or a program that JAX compiles cannot do this: see "
        "[JAX](jax.md) and [from mpi4jax](from-mpi4jax.md).",
    ),
    "The command line": (
        ("apps", "cli", "seismic"),
        "An option or a file: one line on standard error, exit code 2, and nothing has been computed. `--help` of the "
        "command, and its page, say what it takes.",
    ),
    "Profiles": (
        ("profile",),
        "An option of [`COLLOPS_PROFILE`](profiling.md).",
    ),
    "Bridges to other libraries": (
        ("bridges",),
        "An array or operator of another library has a form that collops does not have, or the reverse: see "
        "[SciPy and NumPy](bridge-scipy.md), [the array API](bridge-array-api.md), [PyTorch](bridge-torch.md), "
        "[DTensor](bridge-torch-distributed.md), "
        "[sharded JAX arrays](bridge-sharding.md), "
        "[FFT, halos and sparse products of sharded JAX arrays](bridge-sharded.md), "
        "[lineax, optimistix, equinox](bridge-lineax.md), "
        "[PETSc](bridge-petsc.md), [h5py, zarr, dask, xarray](bridge-chunked.md).",
    ),
    "The interface of PyLops-MPI": (
        ("compat",),
        "What PyLops-MPI refuses is refused here, too; [from PyLops-MPI](from-pylops-mpi.md) has what differs.",
    ),
}


# What is listed, by the name that is called to say it: errors of this package and of Python, and warnings.
_PYTHONS = ("AttributeError", "IndexError", "NotImplementedError", "RuntimeError", "TypeError", "ValueError")
KINDS = {name: name for name in (*errors.__all__, *_PYTHONS)} | {"warn": "warning"}


class Message(NamedTuple):
    """What is said, with … for what depends on the call, the class of the error or `warning`, and the file."""

    text: str
    error: str
    path: str


def _text(node: ast.expr) -> str:
    """Return what is known of a message before the program runs."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return "…"


def messages() -> Iterator[Message]:
    """Go through all errors and warnings of this package that are made with a message, each message once a file."""
    seen = set()
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(node, ast.Call) and node.args):
                continue
            kind = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            found = Message(" ".join(_text(node.args[0]).split()), KINDS.get(kind, ""), name)
            if found.error and found not in seen and any(map(str.isalpha, found.text)):
                seen.add(found)
                yield found


def subject(message: Message) -> str:
    """Return what a message is about."""
    titles = {part: title for title, (parts, _) in SUBJECTS.items() for part in parts}
    fitting = [part for part in titles if message.path == part or message.path.startswith(f"{part}/")]
    if not fitting:
        raise LookupError(f"no subject of the page of messages has {message.path}")
    return titles[max(fitting, key=len)]


def remedy(message: Message) -> str:
    """Return the title of what to do about a message."""

    def fits(one: dict) -> bool:
        phrases = one.get("phrases")
        said = phrases is None or any(re.search(phrase, message.text) for phrase in phrases)
        return said and message.error in one.get("errors", [message.error])

    return next(one["title"] for one in REMEDIES if fits(one))


def page() -> str:
    """Return where to read about each subject, and then all messages by what to do about them, each once a subject."""
    found: dict[str, dict[str, set[str]]] = {}
    for message in messages():
        line = f"- `{message.text}` ({message.error})"
        found.setdefault(remedy(message), {}).setdefault(subject(message), set()).add(line)
    rows = [f"| {title} | {words} |" for title, (_, words) in SUBJECTS.items()]
    parts = ["\n".join(["| subject | what its messages are about |", "| --- | --- |", *rows])]
    for one in REMEDIES:
        if "means" not in one:  # one more rule for a title that is further up
            continue
        parts.append(f"## {one['title']}\n\n*What it means:* {one['means']}\n\n*What to do:* {one['do']}")
        for each in SUBJECTS:
            if lines := found.get(one["title"], {}).get(each):
                parts += [f"**{each}**", "\n".join(sorted(lines, key=str.casefold))]
    return "\n\n".join(parts) + "\n"


def write_page(app: Sphinx) -> None:
    """Write `_measured/messages.md`, which a page includes."""
    path = Path(app.srcdir) / "_measured" / "messages.md"
    path.parent.mkdir(exist_ok=True)
    if not path.exists() or path.read_text("utf-8") != page():
        path.write_text(page(), "utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the list before the pages are read."""
    app.connect("config-inited", lambda app, _: write_page(app))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
