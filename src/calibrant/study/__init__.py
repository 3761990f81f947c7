"""Studies: recipes x losses x options x seeds, each a run folder, and the resulting tables; and searches for options."""

from calibrant.study.jobs import Job
from calibrant.study.launchers import State
from calibrant.study.leaderboard import Leaderboard
from calibrant.study.study import Study
from calibrant.study.tables import StudyTable
from calibrant.study.tuning import Tuning

__all__ = ["Job", "Leaderboard", "State", "Study", "StudyTable", "Tuning"]
