"""Travel's task families. Each turns on what the booking says, not on the request alone."""

from __future__ import annotations

from rollout_engine.environments.families import Draft, Draw, Family
from rollout_engine.environments.travel.schema import ROOMS
from rollout_engine.environments.travel.stay import Stay

ORDER = tuple(ROOMS)


def hotel_downgrade(draw: Draw) -> Draft:
    """A cheaper room. A total of four digits needs a manager's approval first; then the difference goes back."""
    variant = draw.variant({"granted": 0.4, "small": 0.35, "refused": 0.15, "unverified": 0.1})
    large = variant in ("granted", "refused")
    room, nights = draw.pick((("suite", 5), ("suite", 6), ("suite", 7), ("suite", 8), ("deluxe", 8), ("deluxe", 9)))
    if not large:
        room, nights = draw.pick((("standard", 4), ("standard", 7), ("deluxe", 3), ("deluxe", 5), ("suite", 3)))
    stay = Stay(
        draw,
        room=room,
        nights=nights,
        verified="no" if variant == "unverified" else "yes",
        manager="refused" if variant == "refused" else "granted",
    )
    new = draw.pick(ORDER[: ORDER.index(room)])
    due = stay.difference(new)
    approval = stay.act("request_approval", reason="downgrade")
    change = stay.act("change_room", room=new)
    plain = stay.serve(change, stay.refund(due))
    approved = stay.serve(approval, change, stay.refund(due))
    right = {
        "granted": approved,
        "small": plain,
        "refused": stay.deny(approval),
        "unverified": stay.deny(),
    }[variant]
    main = {
        "granted": ("skip_approval", plain),
        "small": ("needless_approval", approved),
        "refused": ("ignore_refusal", approved),
        "unverified": ("serve_unverified", plain),
    }[variant]
    others = {}
    if variant in ("granted", "small"):
        others["full_refund"] = stay.serve(*right.calls[:-2], stay.refund(stay.total))
    elif variant == "refused":
        others["skip_approval"] = plain
    return stay.draft(
        (
            "i want a cheaper[ {room}] room for {booking_id} .",
            "please change {booking_id} to a cheaper[ {room}] room .",
            "can you give me a cheaper[ {room}] room for {booking_id} ?",
            "move {booking_id} to a cheaper[ {room}] room .",
        ),
        right,
        main,
        others,
        {"room": new},
        withhold="room",
    )


def room_upgrade(draw: Draw) -> Draft:
    """A better room: free for gold, the others pay the difference."""
    variant = draw.variant({"pays": 0.5, "gold": 0.35, "unverified": 0.15})
    tier = {"gold": "gold", "pays": draw.pick(("silver", "basic")), "unverified": None}[variant]
    room = draw.pick(ORDER[:-1])
    stay = Stay(draw, room=room, tier=tier, verified="no" if variant == "unverified" else "yes")
    new = draw.pick(ORDER[ORDER.index(room) + 1 :])
    change = stay.act("change_room", room=new)
    free = stay.serve(change)
    paid = stay.serve(change, stay.charge(stay.difference(new)))
    right, main = {
        "gold": (free, ("charge_gold", paid)),
        "pays": (paid, ("forget_charge", free)),
        "unverified": (stay.deny(), ("serve_unverified", paid)),
    }[variant]
    return stay.draft(
        (
            "i want a better[ {room}] room for {booking_id} .",
            "please change {booking_id} to a better[ {room}] room .",
            "can you give me a better[ {room}] room for {booking_id} ?",
            "move {booking_id} to a better[ {room}] room .",
        ),
        right,
        main,
        facts={"room": new},
        withhold="room",
    )


def cancel_booking(draw: Draw) -> Draft:
    """Cancel. What goes back depends on the notice given: everything, half or nothing."""
    variant = draw.variant({"late": 0.4, "early": 0.3, "none": 0.15, "unverified": 0.15})
    notice = draw.pick(("early", "late")) if variant == "unverified" else variant
    stay = Stay(draw, verified="no" if variant == "unverified" else "yes", notice=notice)
    cancel = stay.act("cancel_booking")
    nothing = stay.serve(cancel)
    full = stay.serve(cancel, stay.refund(stay.total))
    due = stay.cancelled(notice)
    exact = stay.serve(cancel, stay.refund(due)) if due else nothing
    right = stay.deny() if variant == "unverified" else exact
    main = {
        "late": ("full_refund", full),
        "early": ("forget_refund", nothing),
        "none": ("full_refund", full),
        "unverified": ("serve_unverified", exact),
    }[variant]
    others = {"forget_refund": nothing} if variant == "late" else {}
    return stay.draft(
        (
            "please cancel {booking_id} .",
            "i want to cancel {booking_id} .",
            "can you cancel {booking_id} ?",
            "i can not come , cancel {booking_id} .",
        ),
        right,
        main,
        others,
    )


def extend_stay(draw: Draw) -> Draft:
    """More nights, if there is vacancy."""
    variant = draw.variant({"free": 0.6, "full": 0.25, "unverified": 0.15})
    stay = Stay(
        draw,
        verified="no" if variant == "unverified" else "yes",
        vacancy="full" if variant == "full" else "free",
    )
    nights = draw.number(2, 5)
    more = stay.serve(stay.act("extend_stay", nights=nights))
    right, main = {
        "free": (more, ("wrong_resolution", more.closing("denied"))),
        "full": (stay.deny(), ("overbook", more)),
        "unverified": (stay.deny(), ("serve_unverified", more)),
    }[variant]
    others = {"deny_vacant": stay.deny()} if variant == "free" else {}
    return stay.draft(
        (
            "i want to stay {nights} more nights , {booking_id} .",
            "please add {nights} more nights to {booking_id} .",
            "can i stay {nights} more nights ? it is {booking_id} .",
            "{nights} more nights for {booking_id} .",
        ),
        right,
        main,
        others,
        {"nights": str(nights)},
    )


def change_month(draw: Draw) -> Draft:
    """Another month, if the booking is flexible."""
    variant = draw.variant({"flexible": 0.55, "fixed": 0.3, "unverified": 0.15})
    stay = Stay(
        draw,
        verified="no" if variant == "unverified" else "yes",
        flexible="no" if variant == "fixed" else "yes",
    )
    month = draw.pick(("march", "april", "may"))
    move = stay.serve(stay.act("change_month", month=month))
    right, main = {
        "flexible": (move, ("deny_flexible", stay.deny())),
        "fixed": (stay.deny(), ("move_fixed", move)),
        "unverified": (stay.deny(), ("serve_unverified", move)),
    }[variant]
    return stay.draft(
        (
            "i want another month[ , {month} ,] for {booking_id} .",
            "please move {booking_id} to another month[ , {month}] .",
            "can i come in another month[ , {month}] ? it is {booking_id} .",
            "another month[ , {month} ,] for {booking_id} please .",
        ),
        right,
        main,
        facts={"month": month},
        withhold="month",
    )


def duplicate_payment(draw: Draw) -> Draft:
    """Paid twice: the second payment goes back, if there is one."""
    variant = draw.variant({"twice": 0.6, "once": 0.25, "unverified": 0.15})
    stay = Stay(
        draw,
        verified="no" if variant == "unverified" else "yes",
        paid_twice=variant != "once",
    )
    back = stay.serve(stay.refund(stay.total, payment=-1))
    right, main = {
        "twice": (back, ("refund_first", stay.serve(stay.refund(stay.total)))),
        "once": (stay.deny(), ("refund_only_payment", back)),
        "unverified": (stay.deny(), ("serve_unverified", back)),
    }[variant]
    others = {"deny_duplicate": stay.deny()} if variant == "twice" else {}
    return stay.draft(
        (
            "i paid twice for {booking_id} .",
            "you charged me twice for {booking_id} .",
            "i was charged twice for {booking_id} .",
            "why did i pay twice for {booking_id} ?",
        ),
        right,
        main,
        others,
    )


def late_checkout(draw: Draw) -> Draft:
    """Late checkout: for gold and silver only."""
    variant = draw.variant({"member": 0.5, "basic": 0.35, "unverified": 0.15})
    tier = "basic" if variant == "basic" else draw.pick(("gold", "silver"))
    stay = Stay(draw, tier=tier, verified="no" if variant == "unverified" else "yes")
    allow = stay.serve(stay.act("late_checkout"))
    right, main = {
        "member": (allow, ("deny_member", stay.deny())),
        "basic": (stay.deny(), ("serve_basic", allow)),
        "unverified": (stay.deny(), ("serve_unverified", allow)),
    }[variant]
    return stay.draft(
        (
            "i want a late checkout for {booking_id} .",
            "please give me a late checkout for {booking_id} .",
            "can i have a late checkout ? it is {booking_id} .",
            "late checkout for {booking_id} please .",
        ),
        right,
        main,
    )


def noise_complaint(draw: Draw) -> Draft:
    """A voucher by tier; a basic guest's complaint goes to a manager."""
    variant = draw.variant({"silver": 0.35, "gold": 0.3, "basic": 0.25, "unverified": 0.1})
    tier = draw.pick(("gold", "silver")) if variant == "unverified" else variant
    stay = Stay(draw, tier=tier, verified="no" if variant == "unverified" else "yes")
    gold, silver = (stay.serve(stay.act("give_voucher", amount=amount)) for amount in (100, 50))
    right, main = {
        "gold": (gold, ("wrong_voucher", silver)),
        "silver": (silver, ("wrong_voucher", gold)),
        "basic": (stay.escalate(), ("voucher_for_basic", silver)),
        "unverified": (stay.deny(), ("serve_unverified", silver)),
    }[variant]
    others = {"wrong_resolution": right.closing("denied")} if variant == "basic" else {}
    return stay.draft(
        (
            "my room is too loud , {booking_id} .",
            "i can not sleep , it is too loud in {booking_id} .",
            "it is too loud in my room , {booking_id} .",
            "the room of {booking_id} is too loud .",
        ),
        right,
        main,
        others,
    )


def broken_room(draw: Draw) -> Draft:
    """Something is broken: move to the spare room, or leave it to a manager."""
    variant = draw.variant({"spare": 0.55, "none": 0.35, "unverified": 0.1})
    stay = Stay(
        draw,
        verified="no" if variant == "unverified" else "yes",
        spare="no" if variant == "none" else "yes",
    )
    move = stay.serve(stay.act("move_room"))
    right, main = {
        "spare": (move, ("needless_escalation", stay.escalate())),
        "none": (stay.escalate(), ("move_without_spare", move)),
        "unverified": (stay.deny(), ("serve_unverified", move)),
    }[variant]
    others = {"wrong_resolution": right.closing("resolved")} if variant == "none" else {}
    return stay.draft(
        (
            "the shower is broken in {booking_id} .",
            "my shower is broken , {booking_id} .",
            "the light in my room is broken , {booking_id} .",
            "the light is broken in {booking_id} .",
        ),
        right,
        main,
        others,
    )


def fee_waiver(draw: Draw) -> Draft:
    """Waive a fee: for gold at once, for silver after approval, for basic never."""
    variant = draw.variant({"silver": 0.4, "gold": 0.25, "basic": 0.2, "unverified": 0.15})
    tier = draw.pick(("gold", "silver")) if variant == "unverified" else variant
    stay = Stay(draw, tier=tier, verified="no" if variant == "unverified" else "yes", fee=draw.number(20, 90, 5))
    waive = stay.act("waive_fee")
    at_once = stay.serve(waive)
    approved = stay.serve(stay.act("request_approval", reason="fee"), waive)
    right, main = {
        "silver": (approved, ("skip_approval", at_once)),
        "gold": (at_once, ("needless_approval", approved)),
        "basic": (stay.deny(), ("serve_basic", at_once)),
        "unverified": (stay.deny(), ("serve_unverified", at_once)),
    }[variant]
    return stay.draft(
        (
            "please waive the fee for {booking_id} .",
            "i do not want to pay the fee for {booking_id} .",
            "can you waive the fee of {booking_id} ?",
            "why is there a fee for {booking_id} ? please waive it .",
        ),
        right,
        main,
    )


FAMILIES = tuple(
    Family(build.__name__, build)
    for build in (
        hotel_downgrade,
        room_upgrade,
        cancel_booking,
        extend_stay,
        change_month,
        duplicate_payment,
        late_checkout,
        noise_complaint,
        broken_room,
        fee_waiver,
    )
)
