#include "ops/heads.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <utility>

namespace luna::ops {
namespace {

using at::Tensor;

TEST(EmptyLikeHeads, LieBesideEachOtherAsTheInputsDo) {
  const int64_t batch = 2, n = 5, heads = 3, width = 4;
  const auto split = [&](const Tensor& x) {
    return x.view({batch, n, heads, width}).transpose(1, 2);
  };
  const auto joint = at::randn({batch, n, 3 * heads * width}).chunk(3, -1);
  const auto grads =
      empty_like_heads(split(joint[0]), split(joint[1]), split(joint[2]));
  for (size_t i = 0; i < grads.size(); ++i) {
    EXPECT_EQ(grads[i].sizes(), split(joint[i]).sizes());
    EXPECT_EQ(grads[i].strides(), split(joint[i]).strides());
    EXPECT_TRUE(grads[i].is_alias_of(grads[0]));
    EXPECT_EQ(grads[i].storage_offset(),
              static_cast<int64_t>(i) * heads * width);
  }
  // Two of them only, or in another order: each its own.
  for (const auto& [k, v] : {std::pair(2, 1), std::pair(1, 1)}) {
    const auto alone =
        empty_like_heads(split(joint[0]), split(joint[k]), split(joint[v]));
    EXPECT_FALSE(alone[1].is_alias_of(alone[0]));
    EXPECT_FALSE(alone[2].is_alias_of(alone[1]));
  }
}

}  // namespace
}  // namespace luna::ops
