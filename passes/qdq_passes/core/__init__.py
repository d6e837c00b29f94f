"""The pass framework: contract, pipelines, registry, selection, surgery, annotations, verification, dump."""
