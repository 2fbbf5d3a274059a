"""Make the certificate: the facts about a plan and its realized model for every input, claimed kernel by kernel.

It is written by the realize stage and states claims only. `quantpipe.verify` checks them, with code of its own.
"""

from quantpipe.certify.certificate import certificate, proof_summary
