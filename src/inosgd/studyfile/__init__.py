"""Study files: a user's own data, budgets and model, described in one TOML file."""

from inosgd.studyfile.budgets import read_budgets
from inosgd.studyfile.data import StudyData, load_data
from inosgd.studyfile.problems import Problem, StudyFileError
from inosgd.studyfile.reading import StudyFile, parse_study, read_study
from inosgd.studyfile.runs import Outcome, Prepared, create_run, finish, prepare, prepare_again

__all__ = [
    "Outcome",
    "Prepared",
    "Problem",
    "StudyData",
    "StudyFile",
    "StudyFileError",
    "create_run",
    "finish",
    "load_data",
    "parse_study",
    "prepare",
    "prepare_again",
    "read_budgets",
    "read_study",
]
