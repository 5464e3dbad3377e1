# SPDX-License-Identifier: Apache-2.0
"""The codec of the WIKI protocol: bytes to messages and back, both dialects and both sides. Pure.

A scheduler sends ``seal(build_request(…))`` and reads ``parse_reply(open_reply(FrameReader().feed(…)))``; the reply's
``require()`` is the argument for `parse_nodes` and `parse_jobs`. A resource manager reads
``parse_request(open_request(…))`` and answers with `join_records`, `build_answer` or, for any WikiError that has a
status, `build_refusal`; without a status it closes the connection. Frames are in ``frames``, requests and replies in
``verbs``, lists of nodes and jobs in ``records``, the vocabulary of both in ``words``.
"""
