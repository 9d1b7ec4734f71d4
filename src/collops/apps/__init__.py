"""Whole inversions, from files to pictures: what the command line runs, usable from Python too.

An application is a module with two names: ``Options``, a dataclass that states every option once
(`collops.apps.options`), and ``run``, which prepares, solves and describes a problem (`collops.apps.recipe`) and
whose docstring is the help of the command. The entry-point group ``collops.commands`` makes a module a command.

Options and files that cannot be used raise `InputError` with a remedy: from collective functions on every rank, from
others on this one (`collops.apps.stages` makes errors collective).
"""
