#include "support/mistakes.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "support/errors.h"

namespace luna::testing {

using at::Tensor;

void expect_refused(const std::string& op, const std::function<void()>& call,
                    std::vector<std::string> parts, Kind kind) {
  parts.push_back(op);
  if (kind == Kind::kValue) expect_error<c10::ValueError>(call, parts);
  if (kind == Kind::kType) expect_error<c10::TypeError>(call, parts);
  if (kind == Kind::kAny) expect_error<c10::Error>(call, parts);
}

void expect_refused(const std::string& op, const Problem& problem,
                    const std::vector<Mistake>& mistakes) {
  const Arguments good = stored(problem.arguments, {at::kCPU, at::kFloat});
  ASSERT_NO_THROW(problem.op(good));
  for (const Mistake& mistake : mistakes) {
    SCOPED_TRACE(op + ": " + mistake.what);
    Arguments bad = good;
    mistake.make(bad);
    std::vector<std::string> parts = mistake.parts;
    for (std::string& part : parts) {
      if (part != kShape) continue;
      std::ostringstream shape;
      shape << bad.at(parts[0]).sizes();
      part = shape.str();
    }
    expect_refused(
        op, [&] { problem.op(bad); }, parts, mistake.kind);
  }
}

Tensor like(const Tensor& tensor, std::vector<int64_t> sizes) {
  return at::ones(sizes, tensor.options());
}

Tensor resized(const Tensor& tensor, int64_t dim, int64_t size) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[dim < 0 ? dim + tensor.dim() : dim] = size;
  return like(tensor, sizes);
}

Tensor sideways(const Tensor& tensor) {
  return tensor.transpose(-1, -2).contiguous().transpose(-1, -2);
}

Mistake rank(const char* name) {
  return {"rank", [=](Arguments& a) { a[name] = a[name][0]; }, {name, kShape}};
}
Mistake dtype(const char* name) {
  return {"dtype",
          [=](Arguments& a) { a[name] = a[name].to(at::kDouble); },
          {name, "Double|double|float64"},
          Kind::kType};
}
Mistake integers(const char* name) {
  return {"integers",
          [=](Arguments& a) { a[name] = a[name].to(at::kLong); },
          {name, "Long|long|int64"},
          Kind::kType};
}
Mistake size(const char* name, int64_t dim, const std::string& either,
             const std::string& value) {
  return {"size",
          [=](Arguments& a) { a[name] = resized(a[name], dim, 37); },
          {either.empty() ? name : either, value}};
}
Mistake last_stride(const char* name) {
  return {"last stride",
          [=](Arguments& a) { a[name] = sideways(a[name]); },
          {name, "stride"}};
}
Mistake device(const char* name) {
  return {"device",
          [=](Arguments& a) { a[name] = a[name].to(at::kMeta); },
          {name, "meta"},
          Kind::kAny};
}

std::vector<Mistake> mistakes_with(const std::vector<const char*>& names) {
  std::vector<Mistake> list;
  for (const char* name : names) {
    for (const auto& make : {rank, integers, last_stride, device}) {
      list.push_back(make(name));
    }
  }
  // The first sets the dtype, the rest must have the same.
  for (size_t i = 1; i < names.size(); ++i) list.push_back(dtype(names[i]));
  return list;
}

void add(std::vector<Mistake>& list, const std::vector<Mistake>& more) {
  list.insert(list.end(), more.begin(), more.end());
}

std::vector<Mistake> weight_mistakes() {
  auto with = [](double value) {
    return [value](Arguments& a) {
      a["key_weight"] = a["key_weight"].clone();
      a["key_weight"][1][2] = value;
    };
  };
  return {
      {"negative", with(-0.375), {"key_weight", "-0.375"}},
      {"NaN", with(kNaN), {"key_weight", "nan|NaN"}},
      {"length",
       [](Arguments& a) { a["key_weight"] = resized(a["key_weight"], 1, 37); },
       {"key_weight", "37"}},
      {"batch",
       [](Arguments& a) { a["key_weight"] = resized(a["key_weight"], 0, 37); },
       {"key_weight", "37"}},
      {"rank",
       [](Arguments& a) { a["key_weight"] = a["key_weight"][0]; },
       {"key_weight", kShape}},
      {"heads",
       [](Arguments& a) {
         a["key_weight"] = a["key_weight"].unsqueeze(1).repeat({1, 37, 1});
       },
       {"key_weight", "37"}},
      integers("key_weight"),
      device("key_weight")};
}

std::vector<Mistake> packing_mistakes(const char* name) {
  auto with = [name](std::vector<int64_t> ends) {
    return [=](Arguments& a) { a[name] = at::tensor(ends, at::kLong); };
  };
  return {{"falls", with({0, 57, 50}), {name, "57"}},
          {"not from 0", with({3, 40, 50}), {name, "3"}},
          {"past the end", with({0, 40, 97}), {name, "97"}},
          {"short of the end", with({0, 40, 47}), {name, "47"}},
          {"negative", with({0, -7, 50}), {name, "-7"}},
          {"nothing", with({}), {name}},
          {"rank",
           [name](Arguments& a) { a[name] = a[name].unsqueeze(0); },
           {name, kShape}},
          {"dtype",
           [name](Arguments& a) { a[name] = a[name].to(at::kFloat); },
           {name, "Float|float"},
           Kind::kType},
          {"int16",
           [name](Arguments& a) { a[name] = a[name].to(at::kShort); },
           {name, "Short|short|int16"},
           Kind::kType},
          device(name)};
}

Mistake several_samples(const char* cu_seqlens) {
  return {"batch above 1",
          [](Arguments& a) {
            for (const char* name : {"query", "pack_key", "key", "value"}) {
              if (a.count(name)) a[name] = resized(a[name], 0, 37);
            }
          },
          {cu_seqlens, "37"}};
}

std::vector<Mistake> state_mistakes(const char* name) {
  return {size(name, 0), size(name, 1), size(name, 2), size(name, 3),
          rank(name),    dtype(name),   device(name)};
}

Mistake fewer_key_heads(int64_t heads) {
  return {"fewer key heads than query heads",
          [=](Arguments& a) {
            for (const char* name : {"key", "value"}) {
              a[name] = a[name].narrow(1, 0, heads);
            }
          },
          {"key", "expand"}};
}

std::vector<Mistake> parameter_mistakes() {
  std::vector<Mistake> list;
  for (const char* name : {"projection", "projection_bias", "hidden_weight",
                           "hidden_bias", "output_weight", "output_bias"}) {
    list.push_back(dtype(name));
    list.push_back(integers(name));
    list.push_back(device(name));
    list.push_back({"rank",
                    [=](Arguments& a) {
                      a[name] = a[name].expand({2, 2, 2, -1, -1}).clone();
                    },
                    {name, kShape}});
  }
  for (const char* name : {"projection_bias", "output_bias"}) {
    list.erase(std::remove_if(list.begin(), list.end(),
                              [&](const Mistake& m) {
                                return std::string(m.what) == "rank" &&
                                       m.parts[0] == name;
                              }),
               list.end());
  }
  const std::string psi = "hidden_weight|hidden_bias|output_weight|output_bias";
  add(list, {size("projection", 1, "projection|query|x"),
             size("projection_bias", 0),
             size("hidden_weight", 1, psi),
             size("hidden_bias", 0, psi),
             size("hidden_bias", 1, psi),
             size("output_weight", 0, psi + "|state", "37|111"),
             size("output_weight", 1, psi),
             size("output_bias", 0, psi),
             {"neither one trunk nor one a channel",
              [](Arguments& a) {
                a["hidden_weight"] = resized(a["hidden_weight"], 0, 2);
                a["hidden_bias"] = resized(a["hidden_bias"], 0, 2);
              },
              {"hidden_weight|hidden_bias", "2", "3"}},
             {"projection of other heads",
              [](Arguments& a) {
                a["projection"] = like(a["projection"], {37, 3, 4});
                a["projection_bias"] = like(a["projection_bias"], {37, 3});
              },
              {"projection", "37"}},
             {"bias per head, projection not",
              [](Arguments& a) {
                a["projection_bias"] = like(a["projection_bias"], {2, 3});
              },
              {"projection_bias"}}});
  return list;
}

std::vector<Mistake> seed_mistakes() {
  return {{"seed size",
           [](Arguments& a) { a["seed"] = like(a["seed"], {37}); },
           {"seed", "37"}},
          {"seed rank",
           [](Arguments& a) {
             a["seed"] = like(a["seed"], {1, 2});
           },
           {"seed"}},
          {"seed dtype",
           [](Arguments& a) { a["seed"] = a["seed"].to(at::kInt); },
           {"seed", "Int|int32"},
           Kind::kType},
          device("seed")};
}

}  // namespace luna::testing
