"""A shop's service desk: orders, shipments, carrier exceptions, returns, refunds, tickets."""

from rollout_engine.environments.domain import Domain
from rollout_engine.environments.retail import tools
from rollout_engine.environments.retail.families import FAMILIES
from rollout_engine.environments.retail.schema import SCHEMA

POLICY = """\
read the order first . if the risk is high close the ticket as escalated and do nothing else .
refund exactly the refund due that a tool or the order shows , and nothing when it is 0 .
cancel or change the city only while the order is packed : else deny .
lost : file a claim and then send the order again . a parcel that is moving is not lost : deny .
late : gold gets a credit of 40 , silver of 20 , basic nothing . deny basic and what is not late .
damaged : with a photo start a return and refund , without one deny .
wrong item : start a return , then send it again if it is in stock , else refund .
unwanted : start a return and refund while the window is open , else deny .
carrier exception : release customs , reroute a wrong address , escalate weather .
a missing refund over 999 needs approval first : if it is refused or nothing came back , deny .
"""

DOMAIN = Domain("retail", POLICY, SCHEMA, tools.TOOLS, FAMILIES)
