# SPDX-License-Identifier: Apache-2.0
"""What Slurm and PBS are asked for through DRMAA, with ``submit_by = "drmaa"``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from koala_adapter.errors import LrmRejectedError
from koala_adapter.lrm import Submission
from koala_adapter.lrm.contract import Directives
from koala_adapter.lrm.drmaa.choice import one_text
from koala_adapter.model import BatchKey
from koala_adapter.testing import new_context
from koala_pbs import submission as pbs
from koala_pbs.lrm import PbsLrm
from koala_pbs.settings import PbsSettings
from koala_slurm import submission as slurm
from koala_slurm.lrm import SlurmLrm
from koala_slurm.settings import SlurmSettings

if TYPE_CHECKING:
    from pathlib import Path

SUBMISSION = Submission(
    key=BatchKey("koala-1"), count=3, script="#!/bin/sh\n: secret\n", walltime=5401, queue="short", memory_mib=512
)
NONE = Directives()


def test_slurm() -> None:
    """Minutes go after an hour, which is what its library's field begins with; memory has no unit there."""
    settings = SlurmSettings(submit_by="drmaa", account="physics")
    assert slurm.native_specification(SUBMISSION, settings, NONE).split() == [
        "--nodes=1",
        "--ntasks=1",
        "--cpus-per-task=1",
        "--time=0:91",
        "--no-requeue",
        "--partition=short",
        "--mem=512",
        "--account=physics",
    ]


def test_pbs() -> None:
    """What a job template says of every system is left out: name, hold, output, and the number of a placeholder."""
    settings = PbsSettings(submit_by="drmaa", account="physics")
    assert pbs.native_specification(SUBMISSION, settings, NONE) == (
        "-l select=1:ncpus=1:mem=512mb -l walltime=5401 -r n -S /bin/sh -m n -q short -A physics"
    )


def test_directives_hold_here_too() -> None:
    """What a site adds, drops and renames is what the library gets; a value with blanks cannot be said."""
    directives = Directives(add=("--comment=x",), drop=("--mem",), rename=(("--partition", "--qos"),))
    text = slurm.native_specification(SUBMISSION, SlurmSettings(), directives)
    assert text.endswith("--no-requeue --qos=short --comment=x")
    with pytest.raises(LrmRejectedError, match="two words"):
        slurm.native_specification(SUBMISSION, SlurmSettings(), Directives(add=("--comment='two words'",)))
    with pytest.raises(LrmRejectedError, match="impossible to follow"):
        pbs.native_specification(SUBMISSION, PbsSettings(), Directives(add=("-v A=1",)))


@pytest.mark.parametrize("word", ["", "a b", "a\tb", "a\nb"])
def test_what_a_native_specification_cannot_hold(word: str) -> None:
    """It is divided at blanks by the libraries."""
    with pytest.raises(LrmRejectedError, match="cannot go through DRMAA"):
        one_text(["-q", word])


def test_settings_that_cannot_be_had() -> None:
    """They are refused when the site file is read."""
    with pytest.raises(ValidationError, match="environment = 'login' cannot be had"):
        SlurmSettings(submit_by="drmaa", environment="login")
    with pytest.raises(ValidationError, match="project cannot be had"):
        PbsSettings(submit_by="drmaa", project="p")


def test_what_would_be_sent_is_shown(tmp_path: Path) -> None:
    """Slurm's placeholders are one bulk; PBS's are jobs of their own, told their number where an element finds it."""
    context = new_context(tmp_path)
    shown = SlurmLrm(context, SlurmSettings(submit_by="drmaa")).render(SUBMISSION)
    assert shown.call[:4] == ("drmaa_run_bulk_jobs", "1", "3", "1")
    assert shown.command[0].endswith("sbatch")
    assert shown.script == SUBMISSION.script
    shown = PbsLrm(context, PbsSettings(submit_by="drmaa")).render(SUBMISSION)
    assert shown.call[0] == "drmaa_run_job"
    assert "drmaa_v_env=PBS_ARRAY_INDEX=1" in shown.call
    assert shown.command[0].endswith("qsub")
    assert "3 calls" in shown.note
    assert not [word for word in (*shown.call, *shown.command) if "secret" in word]
