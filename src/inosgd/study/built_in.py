"""Built-in studies, by name: real data that come with scikit-learn, so that nothing has to be downloaded."""

from inosgd.study.breast_cancer import BREAST_CANCER
from inosgd.study.digits import DIGITS

STUDIES = {study.name: study for study in (DIGITS, BREAST_CANCER)}
