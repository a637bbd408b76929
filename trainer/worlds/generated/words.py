"""The words of generated worlds: pools of them for each split, how APIs spell them, and the lists themselves.

In label kinds of themes, `*` stands for generated names of projects and teams. A pool takes every fifth word or so
of each list, so that no held-out domain shares a word with training.
"""

import re
from functools import cache
from typing import Literal, TypeAlias

Pool: TypeAlias = Literal["train", "validation", "test"]
Style: TypeAlias = Literal["snake", "camel", "kebab", "pascal"]

_FIFTH: dict[int, Pool] = {3: "validation", 4: "test"}  # of each five, the others train
_WORD = re.compile(r"[A-Za-z0-9]+")


@cache
def part(words: str, pool: Pool, separator: str = ",", more: str = "") -> tuple[str, ...]:
    """The words of a list that belong to a pool, in training `more` too. Every list of five has words of each.

    >>> part("a, b, c, d, e, f", "train"), part("a, b, c, d, e, f", "test")
    (('a', 'b', 'c', 'f'), ('e',))
    """
    own = tuple(word for at, word in enumerate(split(words, separator)) if _FIFTH.get(at % 5, "train") == pool)
    return own + split(more, separator) if pool == "train" else own


@cache
def split(words: str, separator: str = ",") -> tuple[str, ...]:
    """
    >>> split("a, b"), split("")
    (('a', 'b'), ())
    """
    return tuple(word.strip() for word in words.split(separator)) if words else ()


def spell(words: str, style: Style) -> str:
    """
    >>> [spell("due date", style) for style in ("snake", "camel", "kebab", "pascal")]
    ['due_date', 'dueDate', 'due-date', 'DueDate']
    """
    parts = [word.lower() for word in _WORD.findall(words)]
    if style == "snake":
        return "_".join(parts)
    if style == "kebab":
        return "-".join(parts)
    titled = "".join(word.capitalize() for word in parts)
    return titled if style == "pascal" else titled[:1].lower() + titled[1:]


THEMES = (
    """
    nouns: ticket, complaint, inquiry, bug report, outage, feature request, incident, escalation, callback, survey
    nouns: chat session, refund claim, feedback form, change request, problem report, help article, escalation note
    persons: assignee, requester, support agent, reporter, account manager, first responder
    labels: status = open, waiting, solved, blocked, unclaimed; priority = urgent, normal, low, critical, minor
    labels: channel = phone, web, chat, fax, kiosk; severity = fatal, major, trivial, cosmetic; squad = *
    labels: product = router, scanner, tablet, modem
    numbers: hours, response time, reply count, satisfaction, cost, downtime
    dates: opened on, due date, last contact, promised on, escalated on, resolved on
    verbs: close/closed, flag/flagged, merge/merged, triage/triaged, reopen/reopened, mute/muted, snooze/snoozed
    verbs: acknowledge/acknowledged, forward/forwarded, silence/silenced
    """,
    """
    nouns: order, invoice, quote, coupon, shipment, product, subscription, return, gift card, purchase
    nouns: contract, offer
    nouns: price list, basket, receipt, warranty, credit note, discount, voucher, payout
    persons: customer, buyer, sales rep, vendor, purchaser, cashier
    labels: category = garden, kitchen, toys, books; region = north, south, east, west
    labels: currency = euro, dollar, yen
    labels: payment method = card, cash, transfer, cheque; tier = gold, silver, bronze, platinum; promotion = *
    numbers: amount, quantity, discount rate, net price, tax, margin
    dates: ordered on, paid on, delivery date, invoice date, refunded on, expiry day
    verbs: approve/approved, refund/refunded, cancel/cancelled, charge/charged, ship/shipped, renew/renewed
    verbs: dispute/disputed, hold/held, restock/restocked, void/voided
    """,
    """
    nouns: task, milestone, sprint, meeting, proposal, review, checklist, deadline, goal, roadmap
    nouns: retrospective, agenda
    nouns: work item, user story, epic, decision, action point, status report, prototype, forecast
    persons: owner, reviewer, project lead, facilitator, sponsor, approver
    labels: project = *; stage = planned, running, done, parked; component = backend, frontend, database, website
    labels: taskforce = *; workstream = *; kind = research, design, testing, training
    numbers: effort, story points, budget, velocity, risk score, headcount
    dates: start date, end date, planned on, kickoff date, review date, created on
    verbs: finish/finished, postpone/postponed, archive/archived, pin/pinned, start/started, block/blocked
    verbs: estimate/estimated, duplicate/duplicated, sign off/signed off, prioritize/prioritized
    """,
    """
    nouns: song, album, movie, podcast, playlist, episode, photo, video clip, recording, concert, poster, audiobook
    nouns: sketch, short film, mixtape, ringtone, slideshow, remix, soundtrack, screenplay
    persons: artist, director, host, narrator, photographer, composer
    labels: genre = jazz, folk, drama, comedy, opera; language = french, german, italian, korean
    labels: mood = calm, happy, dark, dreamy; format = vinyl, tape, digital, disc; collection = *; studio = *
    numbers: rating, play count, duration, track count, bitrate, chart position
    dates: released on, added on, last played, premiere date, recorded on, published on
    verbs: like/liked, hide/hidden, download/downloaded, share/shared, skip/skipped, rate/rated, mix/mixed
    verbs: trim/trimmed, bookmark/bookmarked, caption/captioned
    """,
    """
    nouns: trip, flight, hotel booking, car rental, visa, itinerary, tour, ferry ticket, train ride, cruise
    nouns: shuttle
    nouns: excursion, boarding pass, campsite, layover, road trip, seat upgrade, travel claim, museum pass, cabin
    persons: traveler, guide, passenger, driver, pilot, travel agent
    labels: destination = oslo, lima, cairo, hanoi, quito; class = economy, business, premium, sleeper
    labels: season = spring, summer, autumn, winter; airline = skyway, aerolux, jetline, cloudair
    labels: purpose = leisure, work, family, study; party = *
    numbers: price, distance, nights, baggage weight, seat number, delay
    dates: departure date, return date, booked on, arrival date, check-in date, issued on
    verbs: book/booked, confirm/confirmed, reschedule/rescheduled, upgrade/upgraded, reimburse/reimbursed
    verbs: extend/extended, waitlist/waitlisted, print/printed, insure/insured, rebook/rebooked
    """,
    """
    nouns: parcel, pallet, truck, container, warehouse slot, delivery, crate, manifest, pickup, route
    nouns: forklift, bin
    nouns: stock item, customs form, loading dock, freight bill, packing list, consignment, label roll, cargo van
    persons: carrier, dispatcher, receiver, consignee, picker, forwarder
    labels: depot = harbor, airport, hillside, station; zone = red, blue, green, yellow
    labels: handling = fragile, frozen, heavy, loose; shift = morning, evening, night, weekend
    labels: supplier = *; transport = road, rail, sea, air
    numbers: weight, volume, mileage, stock level, axle count, temperature
    dates: shipped on, received on, packed on, inspection date, loaded on, expiry date
    verbs: dispatch/dispatched, scan/scanned, seal/sealed, weigh/weighed, unload/unloaded, reroute/rerouted
    verbs: inspect/inspected, stack/stacked, quarantine/quarantined, load/loaded
    """,
    """
    nouns: course, lesson, exam, essay, homework, lecture, seminar, thesis draft, dictation, worksheet
    nouns: workshop, grade sheet
    nouns: scholarship, tutorial, lab report, book loan, field trip, term paper, presentation, study plan
    persons: teacher, student, tutor, examiner, librarian, advisor
    labels: subject = biology, history, physics, poetry, algebra; level = beginner, advanced, expert, novice
    labels: room type = hall, laboratory, library, gym; term = first, second, third, fourth; faculty = *
    labels: campus = downtown, riverside, lakeside, hilltop
    numbers: score, page count, credits, absences, word count, attendance
    dates: submitted on, exam date, assigned on, graded on, enrolled on, term start
    verbs: grade/graded, submit/submitted, excuse/excused, publish/published, hand back/handed back, curve/curved
    verbs: enroll/enrolled, waive/waived, proofread/proofread, annotate/annotated
    """,
    """
    nouns: appointment, prescription, lab test, vaccine, diagnosis note, referral, therapy plan, checkup
    nouns: x-ray, allergy
    nouns: blood sample, operation, patient visit, treatment, medical record, diet plan, ward bed, health form
    nouns: implant
    persons: patient, doctor, nurse, therapist, surgeon, pharmacist
    labels: department = cardiology, neurology, oncology, surgery; urgency = routine, pressing, immediate, elective
    labels: clinic = *; insurance = public, private, mutual, none; method = oral, topical, injected, inhaled
    labels: outcome = stable, improved, worse, unclear
    numbers: dose, heart rate, age, waiting time, recovery days, blood pressure
    dates: admitted on, next visit, prescribed on, discharged on, tested on, birth date
    verbs: prescribe/prescribed, refer/referred, discharge/discharged, admit/admitted, bill/billed
    verbs: vaccinate/vaccinated
    verbs: sterilize/sterilized, examine/examined, monitor/monitored, relocate/relocated
    """,
    """
    nouns: server, database, backup, domain name, certificate, deployment, pipeline, container image, api key
    nouns: firewall rule
    nouns: alert, cron job, snapshot, disk, cluster, package, log stream, queue, branch, release note
    persons: maintainer, operator, committer, on-call engineer, administrator, developer
    labels: environment = staging, production, sandbox, preview; cloud region = frankfurt, virginia, tokyo, sydney
    labels: runtime = python, java, rust, golang; health = healthy, degraded, failing, unknown; cluster name = *
    labels: license = free, trial, paid, expired
    numbers: cpu load, memory use, error count, uptime, latency, disk size
    dates: deployed on, expires on, last backup, patched on, scheduled on, rotated on
    verbs: restart/restarted, rotate/rotated, scale/scaled, deploy/deployed, revoke/revoked, pause/paused
    verbs: drain/drained, tag/tagged, encrypt/encrypted, patch/patched
    """,
    """
    nouns: apartment, lease, repair, tenant file, garden plot, parking spot, meter reading, key card
    nouns: inspection, room
    nouns: house viewing, mortgage, storage unit, elevator, boiler, window, deposit, property tax, guest house
    nouns: roof
    persons: tenant, landlord, janitor, plumber, broker, electrician
    labels: district = oldtown, docklands, midtown, suburb; condition = new, worn, damaged, restored
    labels: heating = gas, solar, electric, wood; usage = home, office, shop, storage; building = *
    labels: view = park, street, sea, courtyard
    numbers: rent, area, floor, energy use, room count, deposit sum
    dates: move-in date, lease end, listed on, repaired on, inspected on, built on
    verbs: rent out/rented out, repair/repaired, advertise/advertised, paint/painted, evict/evicted
    verbs: furnish/furnished
    verbs: renovate/renovated, clean/cleaned, lock/locked, appraise/appraised
    """,
    """
    nouns: mail, note, contact, reminder, letter, diary entry, newsletter, recipe, voice memo, wish, postcard
    nouns: message
    nouns: draft, bookmark, invitation, birthday, shopping list, loyalty card, greeting, souvenir
    persons: sender, author, recipient, friend, writer, organizer
    labels: folder = inbox, travel, bills, hobbies, clubs; topic = cooking, chess, sailing, gardening
    labels: tone = formal, funny, warm, polite; notebook = *; device = laptop, radio, watch, camera
    labels: circle = relatives, neighbors, colleagues, classmates
    numbers: size, length, attachment count, importance, calories, reading time
    dates: sent on, received at, written on, remind on, edited on, saved on
    verbs: star/starred, delete/deleted, label/labelled, pin up/pinned up, answer/answered, translate/translated
    verbs: unsubscribe/unsubscribed, store/stored, print out/printed out, copy/copied
    """,
)

APPS = """
helix, nimbus, corvid, tandem, larkspur, quarry, beacon, meridian, opal, juniper, saffron, basalt, ember, fathom,
gantry, harvest, inkwell, jetty, kestrel, lumen, magpie, nectar, osprey, pebble, quill, rivet, sextant, timber,
umbra, vellum, willow, xenon, yarrow, zephyr, alcove, bramble, cobalt, dovetail, estuary, falcon, garnet, hollow,
indigo, jasper, keystone, lantern, mosaic, nomad, orchard, prism, quartz, raven, summit, thistle, upland, verve,
walnut, yonder, zenith, anvil, birch, cinder, delta, elm, flint, grove, harbor, iris, jade, kiln, lotus, maple,
nova, onyx, pine, quest, reef, slate, tide, vista, acorn, bolt, crest, dune, echo, fern, glade, haven, isle, juno,
kite, loom, moss, nook, oasis, plume, rook, spire, trove
"""

DIRECTORIES = "roster, people, staffbook, teamlist, crewbase, whoswho, orgchart, phonebook, members, rollcall"

DISTRACTORS = """
color, notes, locale, revision, checksum, source, external ref, etag, visibility, format version, archived flag,
sort key, thumbnail, summary, shortcut, weight class, origin system, sync state, batch code, internal hint
"""

MORE_DISTRACTORS = """
created by, updated at, tenant ref, slug, hash, language code, template, parent ref, position code, badge, flags,
remarks, description, nickname code, timezone, currency code, unit code, serial, lot, shelf, barcode, alias,
theme, icon name, short code, legacy id, crc, score band, priority hint, region code, storage class, mime,
encoding, retention, policy ref, cost center, ledger code, audit mark, risk band, group ref, variant, edition,
mirror, endpoint
"""
"""The last list is for training alone, so that names are read, not known by heart."""

GYM_WORDS: dict[str, tuple[str, ...]] = {
    "login": ("log in", "sign in", "create session", "authenticate", "open session"),
    "list": ("list", "search", "fetch", "browse", "find"),
    "show": ("get", "show", "read", "view"),
    "update": ("update", "edit", "change"),
    "token": ("token", "access token", "session", "session key"),
    "header": ("X-Api-Key", "X-Token", "X-Session", "access_token", "X-Auth-Token"),
    "page": ("page", "page number"),
    "offset": ("offset", "start", "skip"),
    "limit": ("limit", "size", "per page"),
    "cursor": ("cursor", "after", "page token"),
    "next": ("next cursor", "next", "next page"),
    "links": ("links", "paging"),
    "data": ("items", "results", "data", "entries"),
    "outer": ("response", "result", "payload"),
    "group": ("attributes", "details", "fields", "properties"),
    "inner": ("name", "full name"),
    "ok": ("ok", "success"),
    "error": ("error", "message"),
}

MORE_GYM_WORDS: dict[str, tuple[str, ...]] = {
    "login": ("start session", "get token", "obtain token", "request access", "connect", "login"),
    "list": ("query", "retrieve", "get all", "read", "enumerate", "collect", "show all"),
    "show": ("fetch", "retrieve", "look up", "describe", "open"),
    "update": ("modify", "set", "amend", "revise", "save", "alter"),
    "token": ("auth token", "bearer", "session id", "api token", "credential", "secret", "jwt"),
    "header": ("X-Access-Token", "X-Session-Token", "Api-Key", "X-Key", "api_key", "auth_token"),
    "page": ("page index", "page no", "p", "current page"),
    "offset": ("from index", "begin", "start at", "position"),
    "limit": ("count", "page size", "max results", "top", "take", "rows"),
    "cursor": ("continuation", "marker", "starting after", "cursor token"),
    "next": ("next token", "continue from", "more", "next marker"),
    "links": ("navigation", "pages", "link"),
    "data": ("records", "rows", "content", "values", "objects", "hits", "elements", "list", "found"),
    "outer": ("body", "answer", "envelope", "reply", "output"),
    "group": ("values", "info", "data", "spec", "body", "record"),
    "inner": ("display", "text", "person name", "title", "label"),
    "ok": ("succeeded", "accepted", "done", "completed"),
    "error": ("reason", "detail", "problem", "fault", "msg"),
}
"""For training alone, so that names are read, not known by heart."""

CRUD_WORDS: dict[str, tuple[str, ...]] = {
    "list": ("list", "get all", "search", "fetch", "get", "browse", "find"),
    "show": ("get", "show", "read", "view", "fetch"),
    "create": ("create", "add", "new", "post", "register"),
    "update": ("update", "edit", "change", "modify", "set"),
    "delete": ("delete", "remove", "drop", "destroy"),
    "info": ("get system info", "show status", "server version", "get about", "read health"),
    "version": ("version", "release", "build", "server version"),
    "id": ("id", "uuid", "key", "id", "uid"),
    "title": ("title", "name", "title", "display name", "subject"),
    "link": ("url", "link", "url", "address", "web page"),
    "data": ("items", "results", "data", "entries"),
    "group": ("attributes", "details", "fields", "properties"),
    "page": ("page", "page number"),
    "header": ("X-Api-Key", "X-Token", "access_token", "X-Auth-Token"),
    "error": ("error", "message", "detail"),
}
OTHERS = (
    "GET {noun} history", "POST import {nouns}", "POST export {nouns}", "GET {noun} comments",
    "POST {noun} share link", "GET {nouns} settings", "GET {nouns} report", "POST {nouns} sync",
    "GET {noun} permissions", "GET {nouns} feed",
)  # fmt: skip
OPTIONS = ("sort by", "order", "verbose", "with archived", "locale", "expand")  # of lists
SPARE_FIELDS = (
    "proxy", "time zone", "interval", "retries", "webhook", "http verb", "headers", "batch size", "footer",
    "silent", "priority rank", "max length", "cc list", "external key", "icon", "folder path", "sort index",
    "owner group",
    *(f"{what} {part}" for what in ("alert", "sync", "cache", "layout", "export", "quota")
      for part in ("body", "format", "mode", "limit", "enabled", "threshold", "text", "ids")),
)  # fmt: skip
STATUS = (
    "queue size", "workers", "region", "disk free", "new version available", "base url", "users", "mode",
    "cluster", "log level",
)  # fmt: skip
QUALIFIERS = (
    "page", "web", "team", "shared", "daily", "project", "customer", "site", "user", "group", "service", "saved",
)  # fmt: skip
TAKEN = frozenset(word for role in ("list", "show", "create", "update", "delete") for word in CRUD_WORDS[role])
"""Verbs for what every collection can do."""
