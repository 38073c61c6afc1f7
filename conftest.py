"""Make nbval's comparison numeric: text equal, numbers within a tolerance; see `tools/compare.py`.

nbval by itself compares texts letter by letter, ignores pictures, and passes cells that were saved unrun.
Here three of its methods are replaced: cells run as before, and are judged by the book's rules.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from tools import compare

SHOWN = 8  # differences in a failure message

# Kernels inherit these: one thread, so that sums are added in the same order everywhere.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["PYTHONHASHSEED"] = "0"


def pytest_configure(config):
    if config.getoption("nbval", default=False) or config.getoption("nbval_lax", default=False):
        from nbval import plugin

        if plugin.IPyNbCell.compare_outputs is not compare_outputs:
            plugin.IPyNbFile.collect = collect_with_tolerance(plugin.IPyNbFile.collect)
            plugin.IPyNbCell.runtest = run_if_saved_well(plugin.IPyNbCell.runtest)
            plugin.IPyNbCell.compare_outputs = compare_outputs


def collect_with_tolerance(collect):
    """Read the notebook's tolerance before any cell runs; one without a reason, or too wide, ends the collection."""

    def collected(self):
        cells = list(collect(self))
        try:
            self.tolerance = compare.tolerance_of(self.nb.metadata)
        except ValueError as error:
            raise self.CollectError(f"{self.path}: {error}") from None
        return cells

    return collected


def run_if_saved_well(runtest):
    """Run a cell only if it was saved run, without error, and without a mark that hides it from the check."""

    def run(self):
        problems = compare.saved_problems(self.cell)
        if problems:
            self.raise_cell_error("; ".join(problems))
        runtest(self)

    return run


def compare_outputs(self, test, ref, skip_compare=None):
    """Whether the new outputs agree with the saved ones; if not, say where and by how much."""
    tolerance = self.parent.tolerance
    differences = compare.outputs(ref, test, tolerance)
    limits = f"rtol {tolerance.rtol:g}, atol {tolerance.atol:g}"
    self.comparison_traceback = [f"Cell {self.cell_num}: {len(differences)} differences beyond {limits}"]
    self.comparison_traceback += [f"  {difference}" for difference in differences[:SHOWN]]
    if len(differences) > SHOWN:
        self.comparison_traceback.append(f"  … and {len(differences) - SHOWN} more")
    return not differences
