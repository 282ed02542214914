"""Study files: a user's own data, budgets and model, described in one TOML file."""

from inosgd.study.budgets import read_budgets
from inosgd.study.data import StudyData, load_data
from inosgd.study.problems import Problem, StudyFileError
from inosgd.study.reading import StudyFile, parse_study, read_study
from inosgd.study.running import Outcome, Prepared, create_run, finish, prepare, prepare_again

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
