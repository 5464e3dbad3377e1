# SPDX-License-Identifier: Apache-2.0
"""Site files and job files: reading, checking, and refusing with file, line and key.

The doors are :func:`koala_adapter.config.sitefile.load_site` and :func:`koala_adapter.config.jobfile.load_job`. Where
the site file and the state directory are is in :mod:`koala_adapter.config.locations`, which clients use without
loading pydantic. Errors of any file are worded in :mod:`koala_adapter.config.diagnosis`.
"""
