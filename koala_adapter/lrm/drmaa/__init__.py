# SPDX-License-Identifier: Apache-2.0
"""Submitting through a DRMAA 1.0 library, which is loaded by a helper process for each cluster.

``choice`` is the door for plugins that read jobs by commands: it decides between commands and DRMAA and imports the
rest only if a site wants it. ``transport`` submits, ``client`` starts and asks the helper process, ``protocol`` has the
messages between the two, ``helper`` is that process, ``libraries`` knows the capabilities and complaints of each
library.
"""
