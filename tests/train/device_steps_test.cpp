#include "train/device_steps.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "luna/train/trainer.h"
#include "support/check.h"
#include "train/device_run.h"
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

LUNA_EVERY_DEVICE(DeviceStepsTest);

class DeviceRunTest : public DeviceTest {
 protected:
  TrainOptions options(const std::string& folder, double dropout) const {
    return {.folder = folder, .device = device(), .make_model = [dropout] {
              return std::make_shared<TinyModel>(dropout);
            }};
  }
};

std::vector<Json> lines(const std::string& folder) {
  std::istringstream text(bytes_of(folder + "/metrics.jsonl"));
  std::vector<Json> found;
  for (std::string line; std::getline(text, line);) {
    found.push_back(Json::parse(line));
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

TEST_P(DeviceRunTest, GoesOnToTheSameBits) {
  const std::string whole = fresh_folder("whole"), cut = fresh_folder("cut");
  const TrainConfig config = tiny_config();
  train(config, tiny_splits(), options(whole, 0.2));
  TrainOptions parts = options(cut, 0.2);
  for (const int64_t last : {2, 7, 100}) {
    int64_t step = 0;
    train(config, tiny_splits(), parts,
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
