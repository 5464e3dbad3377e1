# SPDX-License-Identifier: Apache-2.0
"""DYNACO: how a running application adapts. Observe, decide, plan, execute (CoreGRID TR-0092). Pure."""
