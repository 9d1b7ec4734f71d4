"""Measure what a program does: the messages that it sends and where its time goes."""

from __future__ import annotations

from collops.profile import messages
from collops.profile.messages import Message, MessageCounts, count_messages

__all__ = ["Message", "MessageCounts", "count_messages", "messages"]
