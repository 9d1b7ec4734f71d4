"""Commands that are not applications: functions for typer from a class of options, and their output."""

from collops.cli.command import command_from as command_from
from collops.cli.command import ended_short as ended_short
from collops.cli.console import Progress as Progress
from collops.cli.console import console as console
from collops.cli.console import table_of_numbers as table_of_numbers
