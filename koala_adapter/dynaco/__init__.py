# SPDX-License-Identifier: Apache-2.0
"""DYNACO: how a running application adapts. Observe, decide, plan, execute (PAPERS section 1.3). Pure."""
