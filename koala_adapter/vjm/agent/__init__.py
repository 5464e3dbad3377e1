# SPDX-License-Identifier: Apache-2.0
"""The agent: the program inside a placeholder, for whatever python3 (3.6 or newer) a node has, on its standard library.

It travels inside the job script, so its modules are joined into one file (``vjm/jobscript.py``). ``program`` and what
it imports hold a processor; everything else is for tasks, and is imported with the first of them.
"""
