"""The routes of the console: pages for people who are signed in, and those that sign them in."""

from typing import Any

from litestar import Router
from litestar.di import Provide

from app.console.api import ApiPage
from app.console.api_operation import OperationPage
from app.console.apis import ApiPages
from app.console.approvals import ApprovalPages
from app.console.assets import show_asset
from app.console.audit import AuditPages
from app.console.exams import ExamPages
from app.console.feedback import FeedbackPages
from app.console.health import HealthPages
from app.console.home import HomePages
from app.console.hosted_models import HostedModelPages
from app.console.keys import KeyPages
from app.console.problem_pages import PROBLEM_PAGES, show_nothing
from app.console.projects import ProjectPages
from app.console.release_changes import ReleaseChangePages
from app.console.release_compare import ReleaseComparePages
from app.console.release_page import ReleasePage
from app.console.releases import ReleasePages
from app.console.run_page import RunDetailPage
from app.console.runs import RunPages
from app.console.schedule import SchedulePages
from app.console.secrets import SecretPages
from app.console.secure_headers import secure_headers
from app.console.session import authorize_visit
from app.console.sign_in import SessionPages, SignInPages
from app.console.skill_changes import SkillChangePages
from app.console.skill_page import SkillDetailPage
from app.console.skills import SkillPages
from app.console.task import TaskDetailPage
from app.console.task_changes import TaskChanges
from app.console.task_replay import ReplayPages
from app.console.tasks import TaskPages
from app.console.usage import UsagePages
from app.console.visit import provide_visit
from app.console.webhooks import WebhookPages

_PAGES: list[Any] = [
    HomePages,
    TaskPages,
    TaskDetailPage,
    TaskChanges,
    ReplayPages,
    ApprovalPages,
    FeedbackPages,
    ApiPages,
    ApiPage,
    OperationPage,
    SkillPages,
    SkillDetailPage,
    SkillChangePages,
    ReleasePages,
    ReleasePage,
    ReleaseComparePages,
    ReleaseChangePages,
    RunPages,
    RunDetailPage,
    SchedulePages,
    ExamPages,
    HostedModelPages,
    SecretPages,
    ProjectPages,
    KeyPages,
    UsagePages,
    AuditPages,
    WebhookPages,
    HealthPages,
    SessionPages,
    show_nothing,
]


def console_router() -> Router:
    pages = Router(
        "/",
        route_handlers=_PAGES,
        guards=[authorize_visit],
        dependencies={"visit": Provide(provide_visit)},
    )
    return Router(
        "/console",
        route_handlers=[pages, SignInPages, show_asset],
        middleware=[secure_headers],
        exception_handlers=PROBLEM_PAGES,
        include_in_schema=False,
    )
