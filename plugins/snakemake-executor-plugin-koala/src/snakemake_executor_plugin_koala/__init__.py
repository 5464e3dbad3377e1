# SPDX-License-Identifier: Apache-2.0
"""Snakemake over koala-adapter: ``snakemake --executor koala``. Snakemake finds this package by its name."""

from __future__ import annotations

from snakemake_interface_executor_plugins.settings import CommonSettings

from snakemake_executor_plugin_koala.executor import Executor
from snakemake_executor_plugin_koala.settings import ExecutorSettings

__all__ = ["Executor", "ExecutorSettings", "common_settings"]

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    # They may be secrets: koala hands them over on its own channel, and not on a command line.
    pass_envvar_declarations_to_cmd=False,
    auto_deploy_default_storage_provider=False,
)
