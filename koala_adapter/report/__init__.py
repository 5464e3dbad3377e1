# SPDX-License-Identifier: Apache-2.0
"""What koala shows: plain values of reports, figures, result pages, and the history of a journal.

The door for values is :mod:`koala_adapter.report.values`, which needs neither the service nor matplotlib.
"""
