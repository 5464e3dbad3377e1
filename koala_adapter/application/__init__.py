# SPDX-License-Identifier: Apache-2.0
"""The library that a malleable program is linked with, for Python 3.6 or newer, and how it is shipped.

The door for programs is :func:`koala_adapter.application.session.join`. ``koala app --install`` joins the modules to
one file, koala_app.py, by :mod:`koala_adapter.application.shipping`; the library in C is in ``clibrary``.
"""
