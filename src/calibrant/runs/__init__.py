"""Folders of runs, studies and searches, and what they hold."""

from calibrant.runs.folder import Run, RunFolder, StudyFolder
from calibrant.runs.results import (
    STAGES,
    Detection,
    Environment,
    JobRecord,
    OODResult,
    RunResult,
    ShiftRecord,
    ShiftResult,
    Stage,
    StudyResult,
    Summary,
)
from calibrant.runs.tuning import TrialRecord, TuningFolder, TuningResult

__all__ = [
    "STAGES",
    "Detection",
    "Environment",
    "JobRecord",
    "OODResult",
    "Run",
    "RunFolder",
    "RunResult",
    "ShiftRecord",
    "ShiftResult",
    "Stage",
    "StudyFolder",
    "StudyResult",
    "Summary",
    "TrialRecord",
    "TuningFolder",
    "TuningResult",
]
