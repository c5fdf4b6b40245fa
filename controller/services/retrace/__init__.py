"""Decisions that were really taken, made again from the recorded history: `retrace` walks, `memory` is the memory of loads."""

from controller.services.retrace.memory import SegmentLife
from controller.services.retrace.retrace import Decided, Retraced, Window, retrace, windows_of

__all__ = ["Decided", "Retraced", "SegmentLife", "Window", "retrace", "windows_of"]
