"""Measure a program: which messages it sends and where its time goes.

`count_messages` counts messages. `mark` and `benchmark` name pieces of code; `record` or the environment variable
``COLLOPS_PROFILE`` measures the time spent in them, on the device if the work runs there, and compares ranks.

``COLLOPS_PROFILE`` is a list separated by commas:

==============  =====================================================================
``1``           print a report on rank 0 at exit, to standard error
``json=PATH``   write the report's numbers at exit
``trace=PATH``  write a trace for Perfetto or Chrome at exit, with one process per rank
``nvtx``        show marks as NVTX ranges
``0`` or empty  off
==============  =====================================================================
"""

from __future__ import annotations

from collops.profile import messages
from collops.profile.marks import benchmark, mark
from collops.profile.messages import Message, MessageCounts, count_messages
from collops.profile.recording import Recording, disable, enable, enabled, record, report, to_chrome_trace, to_json
from collops.profile.report import Report, Row
from collops.profile.settings import report_on as report_on
from collops.profile.settings import start

__all__ = [
    "Message",
    "MessageCounts",
    "Recording",
    "Report",
    "Row",
    "benchmark",
    "count_messages",
    "disable",
    "enable",
    "enabled",
    "mark",
    "messages",
    "record",
    "report",
    "to_chrome_trace",
    "to_json",
]

start()
