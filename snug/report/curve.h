#pragma once

#include <string>
#include <vector>

namespace snug::report {

/// Points of one colour, joined by a line in their order.
struct Series {
  struct Point {
    double x = 0, y = 0;
    std::string title;  ///< shown when the pointer rests on it
  };
  std::string name;
  bool dashed = false;
  std::vector<Point> points;
};

struct Curve {
  std::string title, x_label, y_label;
  std::vector<Series> series;
};

/// An SVG picture of the curve, complete and without references to anything else; text is escaped. Points that are not
/// finite are left out.
std::string render_svg(const Curve& curve);

}  // namespace snug::report
