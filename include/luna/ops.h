#pragma once

// Every op of luna. Each is also reachable through torch's dispatcher, as
// luna::NAME in C++ and torch.ops.luna.NAME in Python.
#include <luna/ops/feature_map.h>
#include <luna/ops/linear_attention.h>
#include <luna/ops/nested_causal_attention.h>
#include <luna/ops/pack_attention.h>
#include <luna/ops/universal_attention.h>
#include <luna/ops/universal_table.h>
#include <luna/ops/unpack_attention.h>
