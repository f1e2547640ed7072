"""Retail's task families. Each turns on what the order says, not on the request alone."""

from __future__ import annotations

from rollout_engine.environments.families import Draft, Draw, Family
from rollout_engine.environments.retail.purchase import Purchase
from rollout_engine.environments.retail.schema import CITIES
from rollout_engine.environments.retail.tools import return_refund


def _risk(variant: str) -> str:
    return "high" if variant == "risky" else "low"


def cancel_order(draw: Draw) -> Draft:
    """Cancel, while it is packed. A restocking fee may reduce what goes back."""
    variant = draw.variant({"fee": 0.35, "whole": 0.25, "shipped": 0.25, "risky": 0.15})
    restock = draw.number(5, 25) if variant == "fee" else 0
    buy = Purchase(draw, status="shipped" if variant == "shipped" else "packed", risk=_risk(variant), restock=restock)
    cancel = buy.act("cancel_order")
    exact = buy.serve(cancel, buy.refund(buy.total - restock))
    full = buy.serve(cancel, buy.refund(buy.total))
    right, main = {
        "fee": (exact, ("full_refund", full)),
        "whole": (exact, ("forget_refund", buy.serve(cancel))),
        "shipped": (buy.deny(), ("cancel_shipped", full)),
        "risky": (buy.escalate(), ("serve_risky", exact)),
    }[variant]
    others = {"forget_refund": buy.serve(cancel)} if variant == "fee" else {}
    return buy.draft(
        (
            "please cancel {order_id} .",
            "i want to cancel {order_id} .",
            "can you cancel {order_id} ?",
            "i do not need it , cancel {order_id} .",
        ),
        right,
        main,
        others,
    )


def change_city(draw: Draw) -> Draft:
    """Deliver to another city, while it is packed."""
    variant = draw.variant({"packed": 0.55, "shipped": 0.3, "risky": 0.15})
    buy = Purchase(draw, status="shipped" if variant == "shipped" else "packed", risk=_risk(variant))
    city = draw.pick([city for city in CITIES if city != buy.city])
    change = buy.serve(buy.act("change_city", city=city))
    right, main = {
        "packed": (change, ("deny_packed", buy.deny())),
        "shipped": (buy.deny(), ("change_shipped", change)),
        "risky": (buy.escalate(), ("serve_risky", change)),
    }[variant]
    return buy.draft(
        (
            "please send {order_id} to another city[ , {city}] .",
            "i want {order_id} in another city[ , {city}] .",
            "can you send {order_id} to another city[ , {city}] ?",
            "another city[ , {city} ,] for {order_id} please .",
        ),
        right,
        main,
        facts={"city": city},
        withhold="city",
    )


def damaged_item(draw: Draw) -> Draft:
    """Broken on arrival: with a photo return and refund, without one not."""
    variant = draw.variant({"photo": 0.55, "none": 0.3, "risky": 0.15})
    buy = Purchase(draw, status="arrived", risk=_risk(variant), photo="no" if variant == "none" else "yes")
    back = buy.act("start_return", reason="damaged")
    served = buy.serve(back, buy.refund(buy.total))
    right, main = {
        "photo": (served, ("forget_refund", buy.serve(back))),
        "none": (buy.deny(), ("no_photo", served)),
        "risky": (buy.escalate(), ("serve_risky", served)),
    }[variant]
    others = {"skip_return": buy.serve(buy.refund(buy.total))} if variant == "photo" else {}
    return buy.draft(
        (
            "{order_id} came damaged .",
            "my item is damaged , {order_id} .",
            "the item in {order_id} is damaged .",
            "i have a damaged item , it is {order_id} .",
        ),
        right,
        main,
        others,
    )


def wrong_item(draw: Draw) -> Draft:
    """The wrong item came: return it, then send it again if in stock, else refund."""
    variant = draw.variant({"stock": 0.5, "none": 0.35, "risky": 0.15})
    buy = Purchase(draw, status="arrived", risk=_risk(variant), stock="no" if variant == "none" else "yes")
    back = buy.act("start_return", reason="wrong")
    again = buy.serve(back, buy.act("send_again"))
    money = buy.serve(back, buy.refund(buy.total))
    right, main = {
        "stock": (again, ("refund_in_stock", money)),
        "none": (money, ("send_without_stock", again)),
        "risky": (buy.escalate(), ("serve_risky", again)),
    }[variant]
    others = {} if variant == "risky" else {"skip_return": right.without("start_return")}
    return buy.draft(
        (
            "i have the wrong item , {order_id} .",
            "the item in {order_id} is wrong .",
            "you sent me the wrong item , {order_id} .",
            "{order_id} came with the wrong item .",
        ),
        right,
        main,
        others,
    )


def return_item(draw: Draw) -> Draft:
    """Not wanted any more: return while the window is open, less the postage."""
    variant = draw.variant({"open": 0.6, "closed": 0.25, "risky": 0.15})
    postage = draw.number(4, 19)
    buy = Purchase(
        draw,
        status="arrived",
        risk=_risk(variant),
        window="closed" if variant == "closed" else "open",
        postage=postage,
    )
    back = buy.act("start_return", reason="unwanted")
    exact = buy.serve(back, buy.refund(return_refund(buy.total, postage, "unwanted")))
    full = buy.serve(back, buy.refund(buy.total))
    right, main = {
        "open": (exact, ("full_refund", full)),
        "closed": (buy.deny(), ("return_closed", exact)),
        "risky": (buy.escalate(), ("serve_risky", exact)),
    }[variant]
    others = {"forget_refund": buy.serve(back)} if variant == "open" else {}
    return buy.draft(
        (
            "i want to return {order_id} .",
            "please return {order_id} , i do not need it .",
            "can i return {order_id} ?",
            "i do not want {order_id} , can i return it ?",
        ),
        right,
        main,
        others,
    )


def lost_shipment(draw: Draw) -> Draft:
    """Lost: claim from the carrier, then send again. Still moving: not lost."""
    variant = draw.variant({"lost": 0.6, "moving": 0.25, "risky": 0.15})
    buy = Purchase(draw, status="shipped", risk=_risk(variant), delivery="moving" if variant == "moving" else "lost")
    again = buy.act("send_again")
    claimed = buy.serve(buy.claim(), again)
    right, main = {
        "lost": (claimed, ("skip_claim", buy.serve(again))),
        "moving": (buy.deny(), ("send_moving", claimed)),
        "risky": (buy.escalate(), ("serve_risky", claimed)),
    }[variant]
    others = {"claim_late": buy.serve(again, buy.claim())} if variant == "lost" else {}
    return buy.draft(
        (
            "my parcel is lost , {order_id} .",
            "{order_id} is lost .",
            "where is {order_id} ? it is lost .",
            "i think {order_id} is lost .",
        ),
        right,
        main,
        others,
    )


def late_delivery(draw: Draw) -> Draft:
    """Late: a credit by tier. Not late, or a basic customer: none."""
    variant = draw.variant({"silver": 0.3, "gold": 0.25, "basic": 0.15, "moving": 0.2, "risky": 0.1})
    tier = variant if variant in ("gold", "silver", "basic") else draw.pick(("gold", "silver"))
    buy = Purchase(
        draw,
        status="shipped",
        tier=tier,
        risk=_risk(variant),
        delivery="moving" if variant == "moving" else "late",
    )
    gold, silver = (buy.serve(buy.act("give_credit", amount=amount)) for amount in (40, 20))
    mine = gold if tier == "gold" else silver
    right, main = {
        "gold": (gold, ("wrong_credit", silver)),
        "silver": (silver, ("wrong_credit", gold)),
        "basic": (buy.deny(), ("credit_for_basic", silver)),
        "moving": (buy.deny(), ("credit_not_late", mine)),
        "risky": (buy.escalate(), ("serve_risky", mine)),
    }[variant]
    return buy.draft(
        (
            "my parcel is late , {order_id} .",
            "{order_id} is late .",
            "why is {order_id} late ?",
            "i think {order_id} is too late .",
        ),
        right,
        main,
    )


def carrier_exception(draw: Draw) -> Draft:
    """Stopped on the way: the cause says what to do."""
    variant = draw.variant({"customs": 0.35, "address": 0.3, "weather": 0.25, "risky": 0.1})
    cause = draw.pick(("customs", "address")) if variant == "risky" else variant
    buy = Purchase(draw, status="shipped", risk=_risk(variant), delivery="stopped", cause=cause)
    release, reroute = (buy.serve(buy.fix(action)) for action in ("release", "reroute"))
    mine = release if cause == "customs" else reroute
    right, main = {
        "customs": (release, ("wrong_action", reroute)),
        "address": (reroute, ("wrong_action", release)),
        "weather": (buy.escalate(), ("fix_weather", reroute)),
        "risky": (buy.escalate(), ("serve_risky", mine)),
    }[variant]
    return buy.draft(
        (
            "my parcel does not move , {order_id} .",
            "{order_id} does not move .",
            "why does {order_id} not move ?",
            "the parcel of {order_id} does not move .",
        ),
        right,
        main,
    )


def price_drop(draw: Draw) -> Draft:
    """Cheaper now: refund the difference, if there is one."""
    variant = draw.variant({"lower": 0.6, "same": 0.25, "risky": 0.15})
    drop = 0 if variant == "same" else draw.number(5, 95)
    buy = Purchase(draw, status="arrived", risk=_risk(variant), total=draw.number(120, 990), price_drop=drop)
    check = buy.act("check_price")
    full = buy.serve(check, buy.refund(buy.total))
    exact = buy.serve(check, buy.refund(drop)) if drop else full
    right, main = {
        "lower": (exact, ("full_refund", full)),
        "same": (buy.deny(check), ("refund_nothing_due", full)),
        "risky": (buy.escalate(), ("serve_risky", exact)),
    }[variant]
    others = {"deny_lower": buy.deny(check)} if variant == "lower" else {}
    return buy.draft(
        (
            "the price of {order_id} is lower now .",
            "{order_id} has a lower price now .",
            "why is the price of {order_id} lower now ?",
            "i see a lower price for {order_id} .",
        ),
        right,
        main,
        others,
    )


def missing_refund(draw: Draw) -> Draft:
    """A refund that never came. Four digits need a manager's approval first; nothing came back, no refund."""
    variant = draw.variant({"granted": 0.35, "small": 0.3, "refused": 0.1, "waiting": 0.15, "risky": 0.1})
    large = variant in ("granted", "refused") or (variant == "waiting" and draw.pick((True, False)))
    due = draw.number(1000, 1900) if large else draw.number(30, 940)
    buy = Purchase(
        draw,
        status="arrived",
        risk=_risk(variant),
        total=due + draw.number(10, 50),
        back="no" if variant == "waiting" else "yes",
        refund_due=due,
        manager="refused" if variant == "refused" else "granted",
    )
    approval = buy.act("request_approval")
    plain = buy.serve(buy.refund(due))
    approved = buy.serve(approval, buy.refund(due))
    right, main = {
        "granted": (approved, ("skip_approval", plain)),
        "small": (plain, ("needless_approval", approved)),
        "refused": (buy.deny(approval), ("ignore_refusal", approved)),
        "waiting": (buy.deny(), ("refund_not_back", plain)),
        "risky": (buy.escalate(), ("serve_risky", plain)),
    }[variant]
    others = {}
    if variant in ("granted", "small"):
        others["full_refund"] = buy.serve(*right.calls[:-2], buy.refund(buy.total))
    return buy.draft(
        (
            "where is my refund for {order_id} ?",
            "i have no refund for {order_id} .",
            "my refund for {order_id} did not come .",
            "i want my refund for {order_id} .",
        ),
        right,
        main,
        others,
    )


FAMILIES = tuple(
    Family(build.__name__, build)
    for build in (
        cancel_order,
        change_city,
        damaged_item,
        wrong_item,
        return_item,
        lost_shipment,
        late_delivery,
        carrier_exception,
        price_drop,
        missing_refund,
    )
)
