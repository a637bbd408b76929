"""The prompt of an adapter's probe: a fixed task, rendered as the deployment renders tasks."""

from uuid import UUID

from app.agent.chat import Chat
from app.agent.prompt_profiles import choose_profile
from app.apis.listed_app import ListedApp
from app.engine.tokenizer import ChatTokenizer
from app.records import Task
from app.settings import Settings

_TASK = Task(UUID(int=0), "Find the mails that came in today, and answer how many there are.")
_APPS = (ListedApp("mail", "Mails that were received and sent"),)


def probe_prompt(deployment: Settings) -> tuple[int, ...]:
    """Token ids up to the policy's first answer. Raises ModelError for a model without a chat template."""
    tokenizer = ChatTokenizer.load(deployment.model_dir, deployment.template_kwargs)
    profile = choose_profile(deployment.prompt_profile, tokenizer.card)
    return Chat(tokenizer, profile.opening(_TASK, (), _APPS)).prompt().ids
