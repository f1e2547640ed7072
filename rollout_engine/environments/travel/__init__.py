"""A hotel desk: bookings, rooms, payments, approvals, tickets."""

from rollout_engine.environments.domain import Domain
from rollout_engine.environments.travel import tools
from rollout_engine.environments.travel.families import FAMILIES
from rollout_engine.environments.travel.schema import SCHEMA

POLICY = """\
read the booking first . serve only verified guests : for others close the ticket as denied and do nothing else .
a cheaper room with a total over 999 needs approval first : if it is refused , close the ticket as denied .
refund and charge exactly the amount due that a tool returns , and nothing when it is 0 .
a better room is free for gold guests , others pay the charge due .
more nights need vacancy , another month a flexible booking , late checkout a gold or silver guest : else deny .
noise : gold gets a voucher of 100 , silver of 50 , for basic close the ticket as escalated .
something broken : move the guest if there is a spare room , else close the ticket as escalated .
a fee is waived for gold at once , for silver after approval , for basic never .
a guest who paid twice gets the whole second payment back , a guest who paid once gets nothing .
at the end close the ticket as resolved , denied or escalated .
"""

DOMAIN = Domain("travel", POLICY, SCHEMA, tools.TOOLS, FAMILIES)
