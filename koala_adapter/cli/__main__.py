# SPDX-License-Identifier: Apache-2.0
"""``python -m koala_adapter.cli``: how a service in the background is started, whatever is on the PATH."""

from koala_adapter.cli import main

if __name__ == "__main__":  # a process that simulates for us loads this module under another name
    main()
