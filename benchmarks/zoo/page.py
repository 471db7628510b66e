def write() -> str:
    return ""
