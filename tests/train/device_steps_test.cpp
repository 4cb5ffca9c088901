#include "train/device_steps.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "luna/data/memory_dataset.h"
#include "luna/train/trainer.h"
#include "support/check.h"
#include "support/device.h"
#include "support/errors.h"
#include "train/tiny.h"

// Steps from data on the device, recorded where there are graphs, against
// steps from batches of the host.

namespace luna::train {
namespace {

using luna::testing::bytes_of;
using luna::testing::DeviceTest;
using luna::testing::expect_close;
using luna::testing::expect_same;
using luna::testing::fresh_folder;
using luna::testing::metrics_without_times;
using luna::testing::tiny_config;
using luna::testing::tiny_data;
using luna::testing::tiny_options;
using luna::testing::tiny_splits;
using luna::testing::TinyModel;
using Json = nlohmann::ordered_json;

class DeviceStepsTest : public DeviceTest {
 protected:
  std::shared_ptr<TinyModel> model(double dropout) const {
    at::manual_seed(7);
    auto made = std::make_shared<TinyModel>(dropout);
    made->to(device());
    return made;
  }
};

NamedTensors all_of(const TinyModel& model, const TrainStep& step) {
  NamedTensors all = named_state(model);
  const NamedTensors more = step.state();
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST_P(DeviceStepsTest, AreTheStepsOfBatchesFromTheHost) {
  const auto data = tiny_data(50, 1);
  const TrainConfig config = tiny_config();
  const auto a = model(0.3), b = model(0.3);
  TrainStep there(a, config), plain(b, config);
  DeviceSteps steps(there, all_of(*a, there), *data, {}, config,
                    [](const std::string& why) { FAIL() << why; });
  data::DataOrder order(50, config.batch, config.seed);
  for (int64_t step = 3; step < 12; ++step) {
    std::vector<data::Batch> batches;
    int64_t tokens = 0;
    for (int64_t part = 0; part < config.accumulate; ++part) {
      batches.push_back(make_batch(
          *data, order.batch(step * config.accumulate + part), {.pad_to = 6}));
      tokens += batches.back().first.lengths.sum().item<int64_t>();
    }
    plain.run(step, batches);
    EXPECT_EQ(steps.run(step), tokens);
  }
  const NamedTensors x = all_of(*a, there), y = all_of(*b, plain);
  for (size_t i = 0; i < x.size(); ++i) {
    expect_same(x[i].second.cpu(), y[i].second.cpu(), x[i].first);
  }
}

TEST_P(DeviceStepsTest, SkipOnTheDeviceWhatIsNotFinite) {
  const auto data = tiny_data(50, 1);
  const TrainConfig config = tiny_config();
  const auto bad = model(0.0);
  bad->disturb = [](const at::Tensor& x) {
    return x * std::numeric_limits<double>::infinity();
  };
  TrainStep step(bad, config);
  DeviceSteps steps(step, all_of(*bad, step), *data, {}, config,
                    [](const std::string& why) { FAIL() << why; });
  const at::Tensor before = named_state(*bad)[0].second.clone();
  for (int64_t i = 0; i < 3; ++i) steps.run(i);
  expect_same(named_state(*bad)[0].second.cpu(), before.cpu(), "weights");
  EXPECT_EQ(step.read().skips().total, 3);
  EXPECT_EQ(step.read().skips().in_row, 3);
}

/// Of up to 4,000 tokens, so that batches of 4 have several sizes.
std::shared_ptr<data::Dataset> long_data(int64_t samples, uint64_t seed) {
  auto data = std::make_shared<data::MemoryDataset>(
      data::TaskInfo{.task = "long", .vocabulary = 8, .classes = 2});
  std::mt19937_64 random(seed);
  for (int64_t i = 0; i < samples; ++i) {
    const uint64_t label = random() % 2;
    std::vector<uint8_t> ids(1 + random() % 4000);
    for (uint8_t& id : ids) id = static_cast<uint8_t>(4 * label + random() % 4);
    data->add({.ids = ids, .label = static_cast<int64_t>(label)});
  }
  return data;
}

TrainConfig packed_config(int64_t accumulate) {
  TrainConfig config = tiny_config();
  config.pack = "on";
  config.accumulate = accumulate;
  return config;
}

// TinyModel drops from what it pools: the same with and without packing.
TEST_P(DeviceStepsTest, PackedAreThoseOfPaddedBatches) {
  const auto data = long_data(40, 1);
  for (const int64_t accumulate : {1, 2}) {
    const TrainConfig config = packed_config(accumulate);
    const auto a = model(0.3), b = model(0.3);
    TrainStep there(a, config), plain(b, config);
    const auto fail = [](const std::string& why) { FAIL() << why; };
    DeviceSteps packed(there, all_of(*a, there), *data, {}, config, fail);
    DeviceSteps padded(plain, all_of(*b, plain), *data, {}, config, fail);
    packed.choose_packing(*a);
    EXPECT_TRUE(packed.packs());
    EXPECT_FALSE(padded.packs());
    for (int64_t step = 3; step < 12; ++step) {
      EXPECT_EQ(packed.run(step), padded.run(step));
    }
    const NamedTensors x = all_of(*a, there), y = all_of(*b, plain);
    for (size_t i = 0; i < x.size(); ++i) {
      expect_close(x[i].second.cpu(), y[i].second.cpu(), 1e-4, x[i].first);
    }
  }
}

TEST_P(DeviceStepsTest, PackWhereThereIsMuchPadding) {
  const auto uneven = long_data(40, 1), even = tiny_data(50, 1);
  const auto packs = [&](const data::Dataset& data, const std::string& pack,
                         const std::string& attention = "universal") {
    TrainConfig config = packed_config(1);
    config.pack = pack;
    config.model.attention = attention;
    const auto made = model(0);
    TrainStep step(made, config);
    DeviceSteps steps(step, {}, data,
                      {.max_length = &data == even.get() ? 3 : 0}, config, {});
    steps.choose_packing(*made);
    return steps.packs();
  };
  EXPECT_TRUE(packs(*even, "on"));
  EXPECT_FALSE(packs(*uneven, "off"));
  EXPECT_EQ(packs(*uneven, "auto"), device().is_cuda());
  EXPECT_FALSE(packs(*even, "auto"));
  EXPECT_FALSE(packs(*uneven, "auto", "softmax")) << "in float32";
}

class PaddedModel : public TinyModel {
  std::string refuses_packed() const override { return "a padded model"; }
};

TEST_P(DeviceStepsTest, SayWhatCannotBePacked) {
  const auto data = long_data(10, 1);
  const auto refuse = [&](TinyModel& model, const data::Dataset& data,
                          const std::string& what) {
    TrainConfig config = packed_config(1);
    const auto made = this->model(0);
    TrainStep step(made, config);
    DeviceSteps on(step, {}, data, {}, config, {});
    luna::testing::expect_error<c10::ValueError>(
        [&] { on.choose_packing(model); }, {"pack = on", what});
    config.pack = "auto";
    DeviceSteps steps(step, {}, data, {}, config, {});
    steps.choose_packing(model);
    EXPECT_FALSE(steps.packs());
  };
  PaddedModel padded;
  refuse(padded, *data, "a padded model");
  data::MemoryDataset pictures({.task = "squares",
                                .vocabulary = 256,
                                .classes = 2,
                                .height = 2,
                                .width = 2});
  pictures.add({.ids = std::vector<uint8_t>(4), .label = 0});
  refuse(*model(0), pictures, "squares");
}

LUNA_EVERY_DEVICE(DeviceStepsTest);

class DeviceRunTest : public DeviceTest {
 protected:
  TrainOptions options(const std::string& folder, double dropout) const {
    return {.folder = folder, .device = device(), .make_model = [dropout] {
              return std::make_shared<TinyModel>(dropout);
            }};
  }
};

/// Lines with a loss.
std::vector<Json> lines(const std::string& folder) {
  std::istringstream text(bytes_of(folder + "/metrics.jsonl"));
  std::vector<Json> found;
  for (std::string line; std::getline(text, line);) {
    Json json = Json::parse(line);
    if (json["kind"] != "features") found.push_back(std::move(json));
  }
  return found;
}

TEST_P(DeviceRunTest, LearnsAsTheCpuDoes) {
  const std::string folder = fresh_folder("device"),
                    host = fresh_folder("host");
  TrainConfig config = tiny_config();
  config.steps = 20;
  train(config, tiny_splits(), options(folder, 0.0));
  TrainOptions on_host = options(host, 0.0);
  on_host.device = c10::Device(c10::kCPU);
  train(config, tiny_splits(), on_host);
  const auto actual = lines(folder), expected = lines(host);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i]["kind"], expected[i]["kind"]);
    EXPECT_EQ(actual[i]["step"], expected[i]["step"]);
    EXPECT_NEAR(actual[i]["loss"], expected[i]["loss"], 2e-4) << expected[i];
    EXPECT_NEAR(actual[i]["accuracy"], expected[i]["accuracy"], 1e-6);
  }
}

/// A run that is stopped twice and goes on ends as one that is not stopped.
void expect_same_bits_when_cut(
    const TrainConfig& config, const Splits& splits,
    const std::function<TrainOptions(const std::string&)>& options) {
  const std::string whole = fresh_folder("whole"), cut = fresh_folder("cut");
  train(config, splits, options(whole));
  TrainOptions parts = options(cut);
  for (const int64_t last : {2, 7, 100}) {
    int64_t step = 0;
    train(config, splits, parts,
          {.progress = [&](const Progress& p) { step = p.step; },
           .stop = [&] { return step >= last; }});
    parts.resume = true;
  }
  EXPECT_EQ(metrics_without_times(cut), metrics_without_times(whole));
  for (const char* file : {"/model.safetensors", "/optimizer.safetensors"}) {
    EXPECT_EQ(bytes_of(RunFolder(cut).checkpoint(12) + file),
              bytes_of(RunFolder(whole).checkpoint(12) + file))
        << file;
  }
}

TEST_P(DeviceRunTest, GoesOnToTheSameBits) {
  expect_same_bits_when_cut(
      tiny_config(), tiny_splits(),
      [this](const std::string& folder) { return options(folder, 0.2); });
}

// Each time it goes on, sizes that were recorded before are recorded anew.
TEST_P(DeviceRunTest, PackedItGoesOnToTheSameBits) {
  expect_same_bits_when_cut(
      packed_config(1), {long_data(40, 1), long_data(6, 2), long_data(6, 3)},
      [this](const std::string& folder) { return options(folder, 0.2); });
}

/// A run that packs learns what one that pads does.
void expect_same_when_packed(TrainConfig config, const Splits& splits,
                             const c10::Device& device) {
  std::vector<std::vector<Json>> found;
  for (const char* pack : {"on", "off"}) {
    const std::string folder = fresh_folder(pack);
    config.pack = pack;
    train(config, splits, {.folder = folder, .device = device});
    found.push_back(lines(folder));
  }
  ASSERT_EQ(found[0].size(), found[1].size());
  for (size_t i = 0; i < found[0].size(); ++i) {
    EXPECT_NEAR(found[0][i]["loss"], found[1][i]["loss"], 1e-4) << found[1][i];
  }
}

/// Small, of a task that the registry does not know.
TrainConfig packed_run_config(const std::string& task,
                              const std::string& attention) {
  TrainConfig config = tiny_config();
  config.data.task = task;
  config.model.attention = attention;
  config.model.width = config.model.ffn = 8;
  config.model.memory_length = 4;
  config.model.dropout = 0;
  return config;
}

TEST_P(DeviceRunTest, PackedItLearnsTheSame) {
  for (const std::string attention : {"universal", "nested"}) {
    TrainConfig config = packed_run_config("tiny", attention);
    config.model.pooling = "cls";
    expect_same_when_packed(config, tiny_splits(), device());
  }
}

/// Pictures of 5 x 5; in one corner the class, three of four pixels black.
std::shared_ptr<data::Dataset> dark_pictures(int64_t samples, uint64_t seed) {
  auto data = std::make_shared<data::MemoryDataset>(data::TaskInfo{
      .task = "dark", .vocabulary = 8, .classes = 2, .height = 5, .width = 5});
  std::mt19937_64 random(seed);
  for (int64_t i = 0; i < samples; ++i) {
    const uint64_t label = random() % 2;
    std::vector<uint8_t> ids(25);
    for (uint8_t& id : ids) {
      id = random() % 4 == 0 ? static_cast<uint8_t>(1 + random() % 7) : 0;
    }
    ids[0] = static_cast<uint8_t>(1 + label);
    data->add({.ids = ids, .label = static_cast<int64_t>(label)});
  }
  return data;
}

TEST_P(DeviceRunTest, LeavesOutBlackThatIsPadding) {
  for (const std::string attention : {"universal", "softmax", "nested"}) {
    TrainConfig config = packed_run_config("dark", attention);
    config.model.black = "padding";
    expect_same_when_packed(
        config,
        {dark_pictures(40, 1), dark_pictures(6, 2), dark_pictures(6, 3)},
        device());
  }
}

TEST_P(DeviceRunTest, SaysOnceThatStepsCannotBeRecorded) {
  if (device().is_cpu()) GTEST_SKIP() << "steps on the CPU are not recorded";
  const std::string folder = fresh_folder("waits");
  TrainOptions waiting = options(folder, 0.0);
  waiting.make_model = [] {
    auto model = std::make_shared<TinyModel>(0.1);
    model->disturb = [](const at::Tensor& x) {
      return x * (x.sum().item<double>() * 0 + 1);
    };
    return model;
  };
  std::vector<std::string> warnings;
  const TrainResult result =
      train(tiny_config(), tiny_splits(), waiting,
            {.warn = [&](const std::string& w) { warnings.push_back(w); }});
  EXPECT_EQ(result.step, 12);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("CUDA graph"), std::string::npos) << warnings[0];
}

LUNA_EVERY_DEVICE(DeviceRunTest);

}  // namespace
}  // namespace luna::train
