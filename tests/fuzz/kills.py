def run(count, seed, kind, folder):
    return []
