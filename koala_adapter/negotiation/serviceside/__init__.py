# SPDX-License-Identifier: Apache-2.0
"""The service's side of negotiation: templates in XML between resource management and one application.

The door is :class:`koala_adapter.negotiation.serviceside.endpoint.Endpoint`; everything here is free of I/O.
"""
