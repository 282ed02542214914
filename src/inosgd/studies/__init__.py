"""Studies: data, owners, model and settings that are trained together by several methods."""

from inosgd.studies.breast_cancer import BREAST_CANCER
from inosgd.studies.digits import DIGITS
from inosgd.studies.study import Settings, Study, StudyData

STUDIES = {study.name: study for study in (DIGITS, BREAST_CANCER)}

__all__ = ["BREAST_CANCER", "DIGITS", "STUDIES", "Settings", "Study", "StudyData"]
