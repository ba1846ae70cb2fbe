from typing import Any

from pydantic import BaseModel


class BaseVerifyRequest(BaseModel):
    responses_create_params: Any = None
    response: Any = None


class BaseVerifyResponse(BaseVerifyRequest):
    reward: float
