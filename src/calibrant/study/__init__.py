"""Studies: recipes x losses x options x seeds, each a run folder, and the resulting tables."""

from calibrant.study.jobs import Job
from calibrant.study.launchers import State
from calibrant.study.study import Study
from calibrant.study.tables import StudyTable

__all__ = ["Job", "State", "Study", "StudyTable"]
