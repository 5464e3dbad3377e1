# SPDX-License-Identifier: Apache-2.0
"""The agent: the program inside a placeholder, for any Python 3.6 or newer, on its standard library only.

It travels inside the job script, where its modules are joined into one file (``vjm/jobscript.py``). The door is
``holding.main``. ``holding`` and what it imports hold a processor; all other modules are for tasks and are imported
with the first of them.
"""
