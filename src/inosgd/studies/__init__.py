"""Studies: data, owners, model and settings that are trained together by several methods."""

from inosgd.studies.digits import DIGITS
from inosgd.studies.study import Settings, Study, StudyData

STUDIES = {study.name: study for study in (DIGITS,)}

__all__ = ["DIGITS", "STUDIES", "Settings", "Study", "StudyData"]
