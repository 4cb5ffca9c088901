#pragma once

#include <luna/nn/feature_map.h>

namespace luna::distill {

/// Starts phi from what softmax is instead of from chance: the projections are
/// twice the coordinates of x (and, if there is one psi, their negatives), then
/// orthogonal random directions, and psi_c is
/// exp(a_c u) with slopes a = 1, -1, 1/2, -1/2, 3/2, ..., drawn through
/// `hidden` equal steps from u = -4 to 4 and straight beyond them. To second
/// order phi(q).phi(k) then has the q_j k_j of exp(q.k), and all of it is
/// positive and alive. Random directions are from torch's default generator.
void start_from_softmax(nn::FeatureMapImpl& map);

}  // namespace luna::distill
