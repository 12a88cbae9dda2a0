#include "snug/report/curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace snug::report {
namespace {

constexpr double kWidth = 760, kHeight = 440;
constexpr double kLeft = 70, kRight = 20, kTop = 44, kBottom = 60;
constexpr std::array<const char*, 7> kColours = {"#1f6feb", "#d1242f", "#1a7f37", "#9a6700",
                                                 "#8250df", "#57606a", "#bf3989"};

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return result;
}

/// A range of values on a stretch of the picture.
struct Axis {
  double low = 0, high = 1, from = 0, to = 1, tick = 1;

  [[nodiscard]] double at(double value) const { return from + (value - low) / (high - low) * (to - from); }
};

/// Round numbers around all values: ticks are 1, 2 or 5 times a power of ten.
Axis axis_for(double least, double most, double from, double to) {
  if (!(least <= most)) least = 0, most = 1;
  if (least == most) least -= 0.5, most += 0.5;
  const double rough = (most - least) / 6;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double tick = 10 * power;
  for (const double times : {1.0, 2.0, 5.0}) {
    if (times * power >= rough) {
      tick = times * power;
      break;
    }
  }
  return {std::floor(least / tick) * tick, std::ceil(most / tick) * tick, from, to, tick};
}

bool drawable(const Series::Point& p) { return std::isfinite(p.x) && std::isfinite(p.y); }

}  // namespace

std::string render_svg(const Curve& curve) {
  double least_x = std::numeric_limits<double>::infinity(), most_x = -least_x, least_y = least_x, most_y = most_x;
  for (const Series& series : curve.series) {
    for (const Series::Point& p : series.points) {
      if (!drawable(p)) continue;
      least_x = std::min(least_x, p.x);
      most_x = std::max(most_x, p.x);
      least_y = std::min(least_y, p.y);
      most_y = std::max(most_y, p.y);
    }
  }
  const Axis x = axis_for(least_x, most_x, kLeft, kWidth - kRight);
  const Axis y = axis_for(least_y, most_y, kHeight - kBottom, kTop);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"24\" font-size=\"15\" font-weight=\"bold\">{3}</text>\n",
      kWidth, kHeight, kLeft, escaped(curve.title));
  const auto ticks = [](const Axis& axis) { return static_cast<int>(std::lround((axis.high - axis.low) / axis.tick)); };
  for (int i = 0; i <= ticks(x); ++i) {
    const double value = x.low + i * x.tick;
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#eee\"/>"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4:g}</text>\n",
        x.at(value), y.to, y.from, y.from + 18, std::abs(value) < x.tick / 2 ? 0 : value);
  }
  for (int i = 0; i <= ticks(y); ++i) {
    const double value = y.low + i * y.tick;
    svg += fmt::format(
        "<line x1=\"{1}\" y1=\"{0:.1f}\" x2=\"{2}\" y2=\"{0:.1f}\" stroke=\"#eee\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:g}</text>\n",
        y.at(value), x.from, x.to, x.from - 8, y.at(value) + 4, std::abs(value) < y.tick / 2 ? 0 : value);
  }
  svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", (x.from + x.to) / 2,
                     kHeight - 16, escaped(curve.x_label));
  svg += fmt::format("<text transform=\"translate(18 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                     (y.from + y.to) / 2, escaped(curve.y_label));
  double legend = kTop + 8;
  for (std::size_t i = 0; i < curve.series.size(); ++i) {
    const Series& series = curve.series[i];
    const char* colour = kColours[i % kColours.size()];
    const char* dash = series.dashed ? " stroke-dasharray=\"5 4\"" : "";
    std::string line, dots;
    for (const Series::Point& p : series.points) {
      if (!drawable(p)) continue;
      line += fmt::format("{:.1f},{:.1f} ", x.at(p.x), y.at(p.y));
      dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\"><title>{}</title></circle>\n",
                          x.at(p.x), y.at(p.y), series.dashed ? 2 : 4, colour, escaped(p.title));
    }
    svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"{}/>\n{}", line, colour,
                       dash, dots);
    svg += fmt::format(
        "<line x1=\"{0}\" y1=\"{1}\" x2=\"{2}\" y2=\"{1}\" stroke=\"{3}\" stroke-width=\"2\"{4}/>"
        "<text x=\"{5}\" y=\"{6}\">{7}</text>\n",
        kWidth - 190, legend, kWidth - 166, colour, dash, kWidth - 160, legend + 4, escaped(series.name));
    legend += 18;
  }
  return svg + "</svg>\n";
}

}  // namespace snug::report
