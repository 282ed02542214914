"""Studies: data with owners, a model, and how it is trained; from a file, built in, or the paper's."""

from inosgd._extras import require

require("data", "joblib", "PIL", "pyarrow", "pydantic", "sklearn")
